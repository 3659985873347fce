package repo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// States of a holder.
const (
	StateBusy    = "busy"    // a command that will soon be done
	StateMounted = "mounted" // serving a mountpoint
	StateClosing = "closing" // unmounted, making the last changes durable
)

// Holder says who has a repository open. It is the content of the lock file.
type Holder struct {
	PID        int       `json:"pid"`
	Command    string    `json:"command"`
	State      string    `json:"state"`
	Mountpoint string    `json:"mountpoint,omitempty"`
	Since      time.Time `json:"since"`
}

// same tells whether two records are of one holder, whatever its state.
func (h Holder) same(o Holder) bool { return h.PID == o.PID && h.Since.Equal(o.Since) }

// LockedError says who has the repository; errors.Is finds ErrLocked.
type LockedError struct {
	Path   string
	Holder Holder // PID is 0 when it could not be read
}

func (e *LockedError) Error() string {
	s := fmt.Sprintf("repository %s is in use", e.Path)
	if e.Holder.PID != 0 {
		s += fmt.Sprintf(" by pid %d (%s)", e.Holder.PID, e.Holder.Command)
	}
	switch {
	case e.Holder.State == StateClosing:
		s += ", which is writing out its last changes"
	case e.Holder.Mountpoint != "":
		s += ", mounted at " + e.Holder.Mountpoint
	}
	return s
}

// Is makes errors.Is(err, ErrLocked) true.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// Lock is a held lock file. The lock is flock(2)'s, which the kernel gives up
// when the holder ends, however it ends; the file is never removed. Its content
// says who holds it, and is that of nobody between holders that closed properly.
type Lock struct {
	f      *os.File
	mu     sync.Mutex // guards holder
	holder Holder
	// Unclean: the last holder, Last, did not close the repository properly.
	Unclean bool
	Last    Holder
}

// Wait says how long Acquire waits for a holder that will soon be done. The zero
// value does not wait.
type Wait struct {
	Busy    time.Duration      // for a command
	Closing time.Duration      // for a daemon that is making the last changes durable
	Tell    func(*LockedError) // called once, when it takes longer than a second; may be nil
}

func (w Wait) most(h Holder) time.Duration {
	switch {
	case h.State == StateMounted && mounted(h):
		return 0
	case h.State == StateMounted, h.State == StateClosing:
		return w.Closing
	}
	return w.Busy
}

// mounted tells whether a holder's mountpoint is still in its own mount table.
// After umount(8) it takes a moment until the daemon hears of it and says that
// it is closing. When in doubt, it is mounted.
func mounted(h Holder) bool {
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", h.PID))
	if err != nil {
		return true
	}
	escape := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`)
	return bytes.Contains(table, []byte(" "+escape.Replace(h.Mountpoint)+" "))
}

// tellAfter is how long waiting goes without a word.
const tellAfter = time.Second

const (
	lockPoll = 20 * time.Millisecond
	maxLock  = 8192 // bytes of a lock file: room for the longest path
)

// Acquire takes the lock of the repository at path. A holder that will soon be
// done is waited for; one that serves a mountpoint is not, while it is mounted.
// The record that it is held is durable when Acquire returns.
// Errors: ErrLocked, ErrNotRepo, the context's.
func Acquire(ctx context.Context, path string, h Holder, wait Wait) (*Lock, error) {
	f, err := os.OpenFile(filepath.Join(path, LockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("repo: %s: %w", path, ErrNotRepo)
	} else if err != nil {
		return nil, fmt.Errorf("repo: lock: %w", err)
	}
	for start := time.Now(); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			f.Close()
			return nil, fmt.Errorf("repo: lock %s: %w", f.Name(), err)
		}
		who := readHolder(f)
		locked, waited := &LockedError{path, who}, time.Since(start)
		if waited >= wait.most(who) {
			f.Close()
			return nil, locked
		}
		if wait.Tell != nil && waited > tellAfter {
			wait.Tell(locked)
			wait.Tell = nil
		}
		if err := sleep(ctx, lockPoll); err != nil {
			f.Close()
			return nil, fmt.Errorf("repo: lock %s: %w", f.Name(), err)
		}
	}
	l := &Lock{f: f, Last: readHolder(f)}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		// Neither nobody's record nor a new file: a record, or what is left of one.
		l.Unclean = size > 0 && l.Last != Holder{} || size > 0 && !isRecord(f)
		h.PID, h.Since = os.Getpid(), time.Now()
		err = l.Record(h)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("repo: lock: %w", err)
	}
	return l, nil
}

// Record replaces what the lock file says of the holder; PID and Since stay
// those of Acquire. It is durable when Record returns.
func (l *Lock) Record(h Holder) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holder.PID != 0 {
		h.PID, h.Since = l.holder.PID, l.holder.Since
	}
	if err := l.write(h); err != nil {
		return err
	}
	l.holder = h
	return nil
}

// write puts a record in place with one write of the file's whole length. The
// length stays, so that it needs no room on a full disk.
func (l *Lock) write(h Holder) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if len(b) >= maxLock {
		return fmt.Errorf("repo: record of %d bytes is too long for the lock file", len(b))
	}
	b = append(b, bytes.Repeat([]byte{' '}, maxLock-1-len(b))...)
	if _, err := l.f.WriteAt(append(b, '\n'), 0); err != nil {
		return err
	}
	return l.f.Sync()
}

// Holder is what was recorded last. It may be called at any time.
func (l *Lock) Holder() Holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder
}

// Release gives the lock up. With clean, the repository counts as properly
// closed: everything else must be durable by then.
func (l *Lock) Release(clean bool) error {
	var err error
	if clean {
		err = l.write(Holder{})
	}
	if e := l.f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("repo: unlock: %w", err)
	}
	return nil
}

// LockedBy tells who holds the repository at path; held is false when nobody does.
func LockedBy(path string) (h Holder, held bool, err error) {
	f, err := os.OpenFile(filepath.Join(path, LockName), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return Holder{}, false, nil
	} else if err != nil {
		return Holder{}, false, fmt.Errorf("repo: lock: %w", err)
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	switch err {
	case nil:
		return readHolder(f), false, nil
	case unix.EWOULDBLOCK:
		for range 10 {
			if h = readHolder(f); h.PID != 0 {
				break
			}
			time.Sleep(lockPoll / 10) // it has just been taken
		}
		return h, true, nil
	}
	return Holder{}, false, fmt.Errorf("repo: lock %s: %w", f.Name(), err)
}

// ErrUnclean: the holder ended without making everything durable.
var ErrUnclean = errors.New("repository was not closed properly")

// WaitFree waits until h does not hold the repository at path any more.
// Errors: ErrUnclean when it ended otherwise than by closing it, the context's.
func WaitFree(ctx context.Context, path string, h Holder) error {
	for {
		now, held, err := LockedBy(path)
		switch {
		case err != nil:
			return err
		case !held && now.same(h):
			return fmt.Errorf("repo: %s: %w", path, ErrUnclean)
		case !held || (now.PID != 0 && !now.same(h)):
			return nil
		}
		if err := sleep(ctx, lockPoll); err != nil {
			return err
		}
	}
}

// readHolder reads the record. It is the zero Holder when there is none, and
// where the file holds something else.
func readHolder(f *os.File) (h Holder) {
	if json.NewDecoder(io.NewSectionReader(f, 0, maxLock)).Decode(&h) != nil {
		return Holder{}
	}
	return h
}

func isRecord(f *os.File) bool {
	var h Holder
	return json.NewDecoder(io.NewSectionReader(f, 0, maxLock)).Decode(&h) == nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
