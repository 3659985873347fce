package main

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// counted tells how many requests the kernel has sent, as the number of inodes
// that statfs(2) shows: the kernel numbers its requests in steps of two.
type counted struct{ fuse.RawFileSystem }

func (c counted) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	st := c.RawFileSystem.StatFs(cancel, h, out)
	out.Files = h.Unique / 2
	return st
}

// serve mounts a contestant of this program, with what is in the folder from,
// and serves until it is unmounted.
func serve(name, from, dir string) error {
	if name == null {
		return serveRaw(newNull(), dir, nullOptions)
	}
	root, err := fs.NewLoopbackRoot(from)
	if err != nil {
		return err
	}
	sec := time.Second // as in go-fuse's own example
	o := &fs.Options{
		AttrTimeout: &sec, EntryTimeout: &sec, NullPermissions: true,
		MountOptions: fuse.MountOptions{FsName: from, Name: "loopback", DirectMount: true},
	}
	if name == loopback {
		o.DisabledCapabilities = fuse.CAP_PASSTHROUGH
	}
	return serveRaw(fs.NewNodeFS(root, o), dir, o.MountOptions)
}

func serveRaw(raw fuse.RawFileSystem, dir string, o fuse.MountOptions) error {
	server, err := fuse.NewServer(counted{raw}, dir, &o)
	if err != nil {
		return err
	}
	server.Serve()
	return nil
}

// nullOptions are what package mount agrees on with the kernel.
var nullOptions = fuse.MountOptions{
	FsName: "null", Name: "null", DirectMount: true,
	MaxWrite: 1 << 20, MaxBackground: 32,
	ExplicitDataCacheControl: true, EnableSymlinkCaching: true, DisableSplice: true,
	ExtraCapabilities: fuse.CAP_DONT_MASK | fuse.CAP_HANDLE_KILLPRIV_V2 | fuse.CAP_SETXATTR_EXT |
		fuse.CAP_NO_OPENDIR_SUPPORT,
	DisabledCapabilities: fuse.CAP_PASSTHROUGH | fuse.CAP_ASYNC_DIO,
}
