package mount

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	mh "github.com/multiformats/go-multihash"

	"cafs/mount/tree"
	"cafs/mount/tree/index"
	"cafs/store"
)

func TestErrno(t *testing.T) {
	type row struct {
		err  error
		want syscall.Errno
	}
	rows := []row{
		{nil, 0},
		{errors.New("anything"), syscall.EIO},
		{&store.CorruptError{Want: mh.Multihash("x")}, syscall.EIO},
		{context.Canceled, syscall.EINTR},
		// A missing block is damage even if the name of its file is missing.
		{fmt.Errorf("%w: %w", store.ErrNotFound, fs.ErrNotExist), syscall.EIO},
		{fmt.Errorf("%w: %w", fs.ErrNotExist, store.ErrNotFound), syscall.EIO},
		{fmt.Errorf("%w: %w", index.ErrReadOnly, syscall.ENOSPC), syscall.EROFS},
		// Errors of our own files.
		{&fs.PathError{Op: "open", Path: "000012.seg", Err: syscall.ENOENT}, syscall.EIO},
		{&fs.PathError{Op: "open", Path: "000012.seg", Err: syscall.EACCES}, syscall.EIO},
		{&fs.PathError{Op: "write", Path: "000012.seg", Err: syscall.ENOSPC}, syscall.ENOSPC},
		{&fs.PathError{Op: "write", Path: "000012.seg", Err: syscall.EDQUOT}, syscall.EDQUOT},
		{fmt.Errorf("%w: %w", index.ErrReadOnly, &fs.PathError{Op: "write", Path: "log", Err: syscall.EIO}), syscall.EROFS},
		// Never by accident.
		{syscall.ENOSYS, syscall.EIO},
		{syscall.EBADF, syscall.EIO},
		{syscall.Errno(0), syscall.EIO},
	}
	for _, r := range errnos {
		rows = append(rows, row{r.err, r.errno})
	}
	for no := range plain {
		rows = append(rows, row{no, no})
	}
	for _, r := range rows {
		err := r.err
		for wraps := range 3 {
			if got := errno(err); got != r.want {
				t.Errorf("%v, wrapped %d times: %v, want %v", r.err, wraps, got, r.want)
			}
			if err != nil {
				err = fmt.Errorf("op %d: %w", wraps, err)
			}
		}
	}
}

// TestEIOLoggedOnce: an EIO names its operation, inode and cause, once.
func TestEIOLoggedOnce(t *testing.T) {
	var text bytes.Buffer
	f := newFileSystem(Options{Logger: slog.New(slog.NewTextHandler(&text, nil)), Sys: nil})
	f.view = &view{nodes: map[uint64]*node{topID: {id: topID, parent: 1, name: reserved}}}
	cause := fmt.Errorf("linksys: block bafyexample: %w", store.ErrNotFound)
	for range 3 {
		if st := f.status(opRead, topID, cause); st != fuse.EIO {
			t.Fatalf("status %v", st)
		}
	}
	if n := bytes.Count(text.Bytes(), []byte("bafyexample")); n != 1 {
		t.Errorf("the cause is in the log %d times:\n%s", n, &text)
	}
	for _, want := range []string{"op=READ", "path=/.cafs", "block not found"} {
		if !bytes.Contains(text.Bytes(), []byte(want)) {
			t.Errorf("the log lacks %q:\n%s", want, &text)
		}
	}
	if st := f.status(opLookup, topID, fs.ErrNotExist); st != fuse.ENOENT {
		t.Errorf("status of a missing name: %v", st)
	}
	if n := bytes.Count(text.Bytes(), []byte("\n")); n != 1 {
		t.Errorf("%d lines in the log, want 1:\n%s", n, &text)
	}
}

// TestSetAttrBits: a bit that is not known is refused, not dropped.
func TestSetAttrBits(t *testing.T) {
	for bit := range 32 {
		in := &fuse.SetAttrIn{}
		in.Valid = 1 << bit
		_, ok := setAttr(in)
		// The NOW bits come only with the time they are about.
		known := bit <= 11 && bit != 7 && bit != 8
		if ok != known {
			t.Errorf("bit %d: accepted %v, want %v", bit, ok, known)
		}
	}
	in := &fuse.SetAttrIn{}
	in.Valid = fuse.FATTR_ATIME | fuse.FATTR_ATIME_NOW | fuse.FATTR_KILL_SUIDGID | fuse.FATTR_SIZE
	s, ok := setAttr(in)
	if !ok || s.Mask != tree.SetAtime|tree.SetSize|tree.KillPriv || s.Atime.Sec == 0 {
		t.Errorf("setAttr: %+v, %v", s, ok)
	}
}
