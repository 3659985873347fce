package repo_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cafs/mount/repo"
)

func acquire(t *testing.T, path string, h repo.Holder) *repo.Lock {
	t.Helper()
	l, err := repo.Acquire(context.Background(), path, h, repo.Wait{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLockExcludes(t *testing.T) {
	d, ctx := t.TempDir(), context.Background()
	l := acquire(t, d, repo.Holder{Command: "cafs mount", State: repo.StateMounted, Mountpoint: "/"})
	if l.Unclean {
		t.Error("a new lock is unclean")
	}
	_, err := repo.Acquire(ctx, d, repo.Holder{}, repo.Wait{Busy: time.Hour, Closing: time.Hour}) // a mount is not waited for
	var locked *repo.LockedError
	if !errors.As(err, &locked) || !errors.Is(err, repo.ErrLocked) {
		t.Fatalf("second lock: %v", err)
	}
	if h := locked.Holder; h.PID != os.Getpid() || h.Mountpoint != "/" || h.Command != "cafs mount" {
		t.Errorf("holder %+v", h)
	}
	if h, held, err := repo.LockedBy(d); !held || err != nil || h != l.Holder() && !h.Since.Equal(l.Holder().Since) {
		t.Errorf("LockedBy: %+v, %v, %v", h, held, err)
	}
	if err := l.Release(true); err != nil {
		t.Fatal(err)
	}
	if h, held, err := repo.LockedBy(d); held || err != nil || h.PID != 0 {
		t.Errorf("LockedBy after the release: %+v, %v, %v", h, held, err)
	}
	if again := acquire(t, d, repo.Holder{}); again.Unclean {
		t.Error("unclean after a clean release")
	}
}

// TestLockContents: what lock files of all kinds say of the last holder.
func TestLockContents(t *testing.T) {
	for text, unclean := range map[string]bool{
		"":                             false,
		"{}\n":                         false,
		"{\"pid\":0}" + "   \n":        false,
		"{\"pid\":5,\"state\":\"mou":   true, // torn
		"{\"pid\":5}\n":                true,
		"{\"pid\":5}\nrest of another": true,
		strings.Repeat("\x00", 8192):   true,
	} {
		d := t.TempDir()
		write(t, filepath.Join(d, repo.LockName), text)
		l := acquire(t, d, repo.Holder{})
		if l.Unclean != unclean {
			t.Errorf("%.20q: unclean %v", text, l.Unclean)
		}
		if h, held, err := repo.LockedBy(d); !held || err != nil || h.PID != os.Getpid() {
			t.Errorf("%.20q: locked by %+v, %v, %v", text, h, held, err)
		}
	}
}

func TestLockUnclean(t *testing.T) {
	d := t.TempDir()
	first := acquire(t, d, repo.Holder{State: repo.StateMounted})
	holder := first.Holder()
	if err := first.Release(false); err != nil { // as if killed
		t.Fatal(err)
	}
	if err := repo.WaitFree(context.Background(), d, holder); !errors.Is(err, repo.ErrUnclean) {
		t.Errorf("WaitFree of one that was killed: %v", err)
	}
	second := acquire(t, d, repo.Holder{})
	if !second.Unclean || second.Last.State != repo.StateMounted || !second.Last.Since.Equal(holder.Since) {
		t.Errorf("the mark of a killed holder was lost: %+v", second)
	}
	if err := second.Release(true); err != nil {
		t.Fatal(err)
	}
	if third := acquire(t, d, repo.Holder{}); third.Unclean {
		t.Error("the mark outlived a clean holder")
	}
}

// TestLockWaits: a command is waited for, and so is a daemon that is closing, or
// that does not know yet that it was unmounted.
func TestLockWaits(t *testing.T) {
	for _, state := range []string{repo.StateBusy, repo.StateClosing, repo.StateMounted} {
		d := t.TempDir()
		l := acquire(t, d, repo.Holder{State: state, Mountpoint: "/not mounted"})
		if _, err := repo.Acquire(context.Background(), d, repo.Holder{}, repo.Wait{Busy: time.Millisecond, Closing: time.Millisecond}); !errors.Is(err, repo.ErrLocked) {
			t.Errorf("%s: with little patience: %v", state, err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := repo.Acquire(ctx, d, repo.Holder{}, repo.Wait{Busy: time.Hour, Closing: time.Hour}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: canceled: %v", state, err)
		}
		got, told := make(chan error), make(chan struct{})
		go func() {
			l, err := repo.Acquire(context.Background(), d, repo.Holder{}, repo.Wait{Busy: time.Hour, Closing: time.Hour, Tell: func(e *repo.LockedError) {
				if e.Holder.State != state {
					t.Errorf("%s: told of %+v", state, e.Holder)
				}
				close(told)
			}})
			if err == nil {
				err = l.Release(true)
			}
			got <- err
		}()
		<-told
		if err := l.Release(true); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Errorf("%s: after the release: %v", state, err)
		}
	}
}

func TestWaitFree(t *testing.T) {
	d, ctx := t.TempDir(), context.Background()
	l := acquire(t, d, repo.Holder{State: repo.StateClosing})
	done := make(chan error)
	go func() { done <- repo.WaitFree(ctx, d, l.Holder()) }()
	if err := l.Release(true); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("clean end: %v", err)
	}
	// The next holder is not waited for.
	old := l.Holder()
	next := acquire(t, d, repo.Holder{State: repo.StateMounted})
	if err := repo.WaitFree(ctx, d, old); err != nil {
		t.Errorf("another holder came: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if err := repo.WaitFree(short, d, next.Holder()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a holder that stays: %v", err)
	}
}

// TestRecordWhole: whoever reads the lock file while its record changes finds
// the old or the new record.
func TestRecordWhole(t *testing.T) {
	d := t.TempDir()
	l := acquire(t, d, repo.Holder{State: repo.StateMounted, Mountpoint: "/"})
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			m := "/" + strings.Repeat("m", i*37%200)
			if err := l.Record(repo.Holder{State: repo.StateMounted, Mountpoint: m}); err != nil {
				done <- err
				return
			}
		}
	}()
	for range 500 {
		h, held, err := repo.LockedBy(d)
		if err != nil || !held || h.PID != os.Getpid() || strings.Trim(h.Mountpoint, "m") != "/" {
			t.Fatalf("read %+v, %v, %v", h, held, err)
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
