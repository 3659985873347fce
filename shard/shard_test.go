package shard_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"cafs/shard"

	"github.com/ipld/go-ipld-prime/storage/sharding"
)

const long = "CIQKSSEQJ4XQ6R43R6AZO2KLGAMEWDJO2HA42KQ6YD5YLUUZUGJKIRY"

// TestFlatfs pins go-ds-flatfs's functions; the module store/interop/flatfs
// compares with the original.
func TestFlatfs(t *testing.T) {
	for _, c := range []struct{ text, key, dir string }{
		{"/repo/flatfs/shard/v1/next-to-last/2\n", long, "IR"},
		{"/repo/flatfs/shard/v1/next-to-last/2", "AB", "_A"},
		{"next-to-last/2", "", "__"},
		{"next-to-last/3", "ABC", "_AB"},
		{"prefix/2", long, "CI"},
		{"prefix/3", "AB", "AB_"},
		{"suffix/3", long, "IRY"},
		{"suffix/3", "AB", "_AB"},
	} {
		f, err := shard.Parse(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Dir(c.key); got != c.dir {
			t.Errorf("%s of %q: %q, want %q", c.text, c.key, got, c.dir)
		}
		if back, err := shard.Parse(f.String()); back != f || err != nil || !f.Flatfs() {
			t.Errorf("%s comes back as %v, %v", f, back, err)
		}
	}
}

// TestIPLD compares with go-ipld-prime's functions, for keys of every length.
func TestIPLD(t *testing.T) {
	for f, theirs := range map[shard.Func]func(string, *[]string){
		shard.R12: sharding.Shard_r12, shard.R122: sharding.Shard_r122, shard.R133: sharding.Shard_r133,
	} {
		for n := range len(long) + 1 {
			var parts []string
			theirs(long[:n], &parts)
			if got, want := f.Dir(long[:n]), strings.Join(parts[:len(parts)-1], "/"); got != want {
				t.Errorf("%s of %q: %q, want %q", f, long[:n], got, want)
			}
		}
		if back, err := shard.Parse(f.String()); back != f || err != nil || f.Flatfs() {
			t.Errorf("%s comes back as %v, %v", f, back, err)
		}
	}
}

func TestUnknown(t *testing.T) {
	for _, text := range []string{"", "prefix", "prefix/0", "prefix/-1", "prefix/65", "middle/2", "/repo/flatfs/shard/v2/prefix/2", "r13", "prefix/2/3"} {
		if f, err := shard.Parse(text); !errors.Is(err, shard.ErrUnknown) || !f.IsZero() {
			t.Errorf("%q: %v, %v", text, f, err)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	for _, f := range []shard.Func{shard.Default, shard.Prefix(5), shard.Suffix(2), shard.R12} {
		if n := testing.AllocsPerRun(100, func() { f.Dir(long) }); n != 0 {
			t.Errorf("%s: %v allocations", f, n)
		}
	}
}

// TestLatches: one key has one lock, and writers of it exclude each other.
func TestLatches(t *testing.T) {
	var l shard.Latches
	a, seven := l.Of("a"), l.OfUint64(7)
	if a != l.Of("a") || seven != l.OfUint64(7) {
		t.Fatal("one key, two locks")
	}
	if seven == l.OfUint64(8) {
		t.Error("neighbours share a lock")
	}
	n := 0
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				mu := l.Of("key")
				mu.Lock()
				n++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if n != 8000 {
		t.Errorf("%d of 8000 were counted", n)
	}
}
