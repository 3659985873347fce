package main

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// serve mounts a loopback of the folder from, or the null file system for
// "N", and serves until it is unmounted.
func serve(from, dir string) error {
	if from == "N" {
		return serveNull(dir)
	}
	root, err := fs.NewLoopbackRoot(from)
	if err != nil {
		return err
	}
	sec := time.Second // as in go-fuse's own example
	server, err := fs.Mount(dir, root, &fs.Options{
		AttrTimeout: &sec, EntryTimeout: &sec, NullPermissions: true,
		MountOptions: fuse.MountOptions{FsName: from, Name: "loopback", DirectMount: true, DisabledCapabilities: fuse.CAP_PASSTHROUGH},
	})
	if err != nil {
		return err
	}
	server.Wait()
	return nil
}

func serveNull(dir string) error {
	const maxWrite = 1 << 20
	server, err := fuse.NewServer(newNull(), dir, &fuse.MountOptions{
		FsName: "null", Name: "null", DirectMount: true,
		MaxWrite: maxWrite, MaxBackground: 32,
		ExplicitDataCacheControl: true, EnableSymlinkCaching: true, DisableSplice: true,
		ExtraCapabilities: fuse.CAP_DONT_MASK | fuse.CAP_HANDLE_KILLPRIV_V2 | fuse.CAP_SETXATTR_EXT |
			fuse.CAP_READDIRPLUS_AUTO | fuse.CAP_NO_OPENDIR_SUPPORT | fuse.CAP_ASYNC_DIO,
		DisabledCapabilities: fuse.CAP_PASSTHROUGH,
	})
	if err != nil {
		return err
	}
	server.Serve()
	return nil
}
