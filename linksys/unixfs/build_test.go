package unixfs_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"cafs/linksys/unixfs"

	"github.com/ipfs/go-cid"
)

// TestWorkersBuildTheSame: any number of workers gives the same file, and a node
// is emitted after all below it.
func TestWorkersBuildTheSame(t *testing.T) {
	rnd := random(t)
	for range 200 {
		p := small(rnd)
		data := make([]byte, rnd.IntN(400))
		for i := range data {
			data[i] = byte(rnd.Int())
		}
		want, err := p.BuildFile(t.Context(), iotest.OneByteReader(bytes.NewReader(data)), discard)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		seen := map[cid.Cid]bool{}
		emit := func(b unixfs.Block) error {
			n, err := unixfs.DecodeNode(b.Cid, b.Data)
			mu.Lock()
			defer mu.Unlock()
			for _, l := range n.Links {
				if !seen[l.Cid] {
					err = errors.New("parent before child")
				}
			}
			seen[b.Cid] = true
			return err
		}
		got, err := unixfs.Builder{Profile: p, Workers: 1 + rnd.IntN(5)}.File(t.Context(), bytes.NewReader(data), emit)
		if err != nil || got != want || !seen[got.Cid] {
			t.Fatalf("%v: got %+v, %v, want %+v", p, got, err, want)
		}
	}
}

// TestBuildFileFails: the n-th failure of the reader, of Emit, or a cancellation
// ends the build with that error, and no goroutine stays behind.
func TestBuildFileFails(t *testing.T) {
	p := unixfs.V1_2025
	p.ChunkSize, p.MaxLinks = 4, 2
	broken := errors.New("broken")
	data := strings.Repeat("x", 50)
	before := runtime.NumGoroutine()
	for _, workers := range []int{0, 1, 3} {
		b := unixfs.Builder{Profile: p, Workers: workers}
		emitted := 0
		for n := int64(1); ; n++ {
			var calls atomic.Int64
			_, err := b.File(t.Context(), strings.NewReader(data), func(unixfs.Block) error {
				if calls.Add(1) == n {
					return broken
				}
				return nil
			})
			if err == nil {
				break
			}
			emitted++
			if !errors.Is(err, broken) {
				t.Fatalf("%d workers, call %d: %v", workers, n, err)
			}
		}
		if emitted != 13+7+4+2+1 { // the leaves and four levels above them
			t.Errorf("%d workers: %d blocks", workers, emitted)
		}
		for n := range len(data) {
			r := io.MultiReader(strings.NewReader(data[:n]), iotest.ErrReader(broken))
			wantErr(t, broken, func() error { _, err := b.File(t.Context(), r, discard); return err })
		}
		ctx, cancel := context.WithCancel(t.Context())
		wantErr(t, context.Canceled, func() error {
			_, err := b.File(ctx, &stream{n: 1 << 40}, func(unixfs.Block) error { cancel(); return nil })
			return err
		})
	}
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) { // they may still be on their way out, but not for long
			t.Fatalf("%d goroutines before, %d after", before, runtime.NumGoroutine())
		}
	}
}

// TestContentDefined: cut by content, a byte in front changes few chunks.
func TestContentDefined(t *testing.T) {
	for _, chunker := range []string{"buzhash", "rabin", "rabin-4096", "rabin-1024-4096-65536"} {
		p, err := unixfs.ParseProfile("unixfs-v1-2025,chunker=" + chunker)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(&stream{seed: 5, n: 8 << 20})
		if err != nil {
			t.Fatal(err)
		}
		rnd := rand.New(rand.NewPCG(1, 2)) // the generator's own bytes are too regular to cut well
		for i := range data {
			data[i] ^= byte(rnd.Uint32())
		}
		store := blocks{}
		if _, err := p.BuildFile(t.Context(), bytes.NewReader(data), store.emit); err != nil {
			t.Fatal(err)
		}
		fresh := 0
		root, err := unixfs.Builder{Profile: p, Workers: 2}.File(t.Context(), io.MultiReader(strings.NewReader("!"), bytes.NewReader(data)),
			locked(func(b unixfs.Block) error {
				if _, ok := store[b.Cid]; !ok {
					fresh += len(b.Data)
				}
				return store.emit(b)
			}))
		if err != nil {
			t.Fatal(err)
		}
		if fresh > len(data)/10 {
			t.Errorf("%s: %d new bytes", chunker, fresh)
		}
		if !bytes.Equal(readFile(t, store, root)[1:], data) {
			t.Errorf("%s: other bytes", chunker)
		}
		wantErr(t, unixfs.ErrForeign, func() error {
			_, err := p.EditFile(t.Context(), store.load, root.Cid, 1, nil, discard)
			return err
		})
	}
}

func locked(emit unixfs.Emit) unixfs.Emit {
	var mu sync.Mutex
	return func(b unixfs.Block) error {
		mu.Lock()
		defer mu.Unlock()
		return emit(b)
	}
}

func TestProfiles(t *testing.T) {
	rnd := random(t)
	for range 500 {
		p := small(rnd)
		if rnd.IntN(3) == 0 {
			p.ChunkSize, p.Chunker = unixfs.V1_2025.ChunkSize, "rabin-1000"
		}
		back, err := unixfs.ParseProfile(p.String())
		if p.Chunker != "" {
			back.ChunkSize = p.ChunkSize
		}
		if err != nil || back != p {
			t.Fatalf("%s: %+v, %v", p, back, err)
		}
	}
	for _, s := range []string{
		"", "unixfs-v2", "unixfs-v1-2025,,", "unixfs-v1-2025,hash=md5", "unixfs-v1-2025,hash=sha1", "unixfs-v1-2025,fanout=3",
		"unixfs-v1-2025,fanout=4", "unixfs-v1-2025,fanout=2048", "unixfs-v1-2025,chunker=size-0", "unixfs-v1-2025,chunker=size-2097152",
		"unixfs-v1-2025,chunker=rabin-0", "unixfs-v1-2025,chunker=rabin-10", "unixfs-v1-2025,chunker=rabin-9-8-7", "unixfs-v1-2025,chunker=gear",
		"unixfs-v1-2025,chunker=", "unixfs-v1-2025,max-links=1", "unixfs-v1-2025,dir-size=big", "unixfs-v1-2025,dir-limit=-1",
		"unixfs-v1-2025,cid-version=2", "unixfs-v1-2025,raw-leaves=maybe", "unixfs-v1-2025,max-links=99999999999999999999",
	} {
		if p, err := unixfs.ParseProfile(s); !errors.Is(err, unixfs.ErrProfile) {
			t.Errorf("%q: %+v, %v", s, p, err)
		}
	}
	for s, want := range map[string]unixfs.Profile{"unixfs-v1-2025": unixfs.V1_2025, "unixfs-v0-2015": unixfs.V0_2015} {
		if p, err := unixfs.ParseProfile(s); err != nil || p != want || p.String() != s {
			t.Errorf("%q: %v, %v", s, p, err)
		}
	}
}
