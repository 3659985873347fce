package transport

import (
	"bytes"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// The protocol server answers by itself for one name in the root, with which
// programs that use go-fuse's own way to mount keep clear of a deadlock. Here
// nobody does, and the name may be a file like any other: messages that have it
// reach the file system with another id of the root, for which the protocol
// server has no such rule.

// RootAlias is a node id that messages about names in the root may have
// instead of 1.
const RootAlias = ^uint64(1)

var takenName = []byte(".go-fuse-epoll-hack\x00")

// Opcodes of messages about names (linux/fuse.h).
const (
	opLookup  = 1
	opSymlink = 6
	opMknod   = 8
	opMkdir   = 9
	opUnlink  = 10
	opRmdir   = 11
	opRename  = 12
	opLink    = 13
	opCreate  = 35
	opRename2 = 45
)

// useAlias changes the node id of a message about the name that is taken.
func useAlias(msg []byte) {
	header := (*fuse.InHeader)(unsafe.Pointer(&msg[0]))
	if header.NodeId != fuse.FUSE_ROOT_ID {
		return
	}
	switch header.Opcode {
	case opLookup, opSymlink, opMknod, opMkdir, opUnlink, opRmdir, opRename, opLink, opCreate, opRename2:
		if bytes.Contains(msg[headerSize:], takenName) {
			header.NodeId = RootAlias
		}
	}
}
