package mount

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"cafs/mount/repo"
)

// unmounted is a file system that answers messages without a kernel, with a
// file "f" of 4 KiB in its root.
func unmounted(t testing.TB) (f *fileSystem, file uint64) {
	ctx := context.Background()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	r, err := repo.Open(ctx, filepath.Join(t.TempDir(), "repo"), repo.Options{Create: &repo.Config{}, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	tr, _, err := r.OpenTree(ctx, repo.TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f = newFileSystem(Options{Tree: tr, Logger: log})
	t.Cleanup(func() {
		f.close()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	file = mknod(t, f, "f")
	page := make([]byte, 4096)
	in := fuse.WriteIn{InHeader: fuse.InHeader{NodeId: file}, Size: 4096}
	if _, st := f.Writev(nil, &in, [][]byte{page}); !st.Ok() {
		t.Fatal(st)
	}
	return f, file
}

func mknod(t testing.TB, f *fileSystem, name string) uint64 {
	in := fuse.MknodIn{InHeader: fuse.InHeader{NodeId: 1}, Mode: syscall.S_IFREG | 0o644}
	var out fuse.EntryOut
	if st := f.Mknod(nil, &in, name, &out); !st.Ok() {
		t.Fatal(st)
	}
	return out.NodeId
}

// raceDetector is true in a race build, where a sync.Pool forgets at random.
var raceDetector bool

// TestAllocations: what the kernel asks most often makes no garbage.
func TestAllocations(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	f, file := unmounted(t)
	var entry fuse.EntryOut
	var attr fuse.AttrOut
	head := fuse.InHeader{NodeId: 1}
	get := fuse.GetAttrIn{InHeader: fuse.InHeader{NodeId: file}}
	read := fuse.ReadIn{InHeader: fuse.InHeader{NodeId: file}, Size: 4096}
	buf := make([]byte, 4096)
	for _, c := range []struct {
		name string
		most float64
		op   func() fuse.Status
	}{
		{"GETATTR", 0, func() fuse.Status { return f.GetAttr(nil, &get, &attr) }},
		{"LOOKUP", 0, func() fuse.Status { return f.Lookup(nil, &head, "f", &entry) }},
		{"LOOKUP of what is not there", 1, func() fuse.Status { return f.Lookup(nil, &head, "g", &entry) }},
		{"GETXATTR", 0, func() fuse.Status {
			_, st := f.GetXAttr(nil, &get.InHeader, "security.capability", nil)
			if st == fuse.ENOATTR {
				st = fuse.OK
			}
			return st
		}},
		{"READ", 2, func() fuse.Status { _, st := f.Read(nil, &read, buf); return st }},
	} {
		if n := testing.AllocsPerRun(1000, func() {
			if st := c.op(); !st.Ok() {
				t.Fatal(c.name, st)
			}
		}); n > c.most {
			t.Errorf("%s: %v allocations, want at most %v", c.name, n, c.most)
		}
	}
}

// BenchmarkMessages measures what the daemon does for one message of each kind.
func BenchmarkMessages(b *testing.B) {
	f, file := unmounted(b)
	head, of := fuse.InHeader{NodeId: 1}, fuse.InHeader{NodeId: file}
	var entry fuse.EntryOut
	var attr fuse.AttrOut
	page := make([]byte, 4096)
	run := func(kind string, op func() fuse.Status) {
		b.Run(kind, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if st := op(); !st.Ok() {
					b.Fatal(st)
				}
			}
		})
	}
	run("LOOKUP", func() fuse.Status { return f.Lookup(nil, &head, "f", &entry) })
	run("GETATTR", func() fuse.Status { return f.GetAttr(nil, &fuse.GetAttrIn{InHeader: of}, &attr) })
	run("SETATTR", func() fuse.Status {
		return f.SetAttr(nil, &fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: of, Valid: fuse.FATTR_MODE, Mode: 0o600}}, &attr)
	})
	run("WRITE", func() fuse.Status {
		_, st := f.Writev(nil, &fuse.WriteIn{InHeader: of, Size: 4096}, [][]byte{page})
		return st
	})
	run("READ", func() fuse.Status { _, st := f.Read(nil, &fuse.ReadIn{InHeader: of, Size: 4096}, page); return st })
	b.Run("MKNOD", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			mknod(b, f, fmt.Sprint("m", b.N, "-", i))
		}
	})
	b.Run("UNLINK and FORGET of 4 KiB, published", func(b *testing.B) {
		inos := make([]uint64, b.N)
		for i := range inos {
			inos[i] = mknod(b, f, fmt.Sprint("u", i))
			in := fuse.WriteIn{InHeader: fuse.InHeader{NodeId: inos[i]}, Size: 4096}
			if _, st := f.Writev(nil, &in, [][]byte{page}); !st.Ok() {
				b.Fatal(st)
			}
		}
		if err := f.tree.Sync(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		b.ResetTimer()
		for i, ino := range inos {
			if st := f.Unlink(nil, &head, fmt.Sprint("u", i)); !st.Ok() {
				b.Fatal(st)
			}
			f.Forget(ino, 1)
		}
		f.forgets.settle()
	})
	run("RENAME there and back", func() fuse.Status {
		in := fuse.RenameIn{InHeader: head, Newdir: 1}
		if st := f.Rename(nil, &in, "f", "g"); !st.Ok() {
			return st
		}
		return f.Rename(nil, &in, "g", "f")
	})
}
