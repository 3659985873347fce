package linksys

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ipfs/go-cid"

	"cafs/linksys/unixfs"
)

// Info describes what a CID stands for.
type Info struct {
	Type   Type
	Codec  uint64    // multicodec of the root block
	Size   int64     // bytes: of a file's content, of a link's target, of any other root block
	Mode   uint32    // permission bits 07777 stored in the node; 0 when none are
	Mtime  time.Time // zero when not stored
	Target string    // of a symbolic link
	Links  int64     // of the root block
}

// Stat reads the root block of c, or only its length when it is raw, and says
// what it is. A file's size is the sum its root node declares, after checking
// that the node agrees with itself.
func (s *System) Stat(ctx context.Context, c cid.Cid) (Info, error) {
	if !c.Defined() {
		return Info{}, fmt.Errorf("linksys: stat: undefined CID: %w", unixfs.ErrMalformed)
	}
	info := Info{Codec: c.Prefix().Codec}
	var err error
	if info.Codec == cid.Raw {
		info.Type = Regular
		info.Size, err = s.size(ctx, c)
		return info, err
	}
	it, err := s.cache.get(ctx, c)
	if errors.Is(err, ErrNotUnixFS) {
		info.Size, err = s.size(ctx, c)
		return info, err
	}
	if err != nil {
		return Info{}, err
	}
	n := it.node
	info.Mode, info.Mtime, info.Links = n.Stat.Mode, n.Stat.Mtime, int64(len(n.Links))
	switch n.Type {
	case unixfs.Raw, unixfs.File:
		info.Type, info.Size = Regular, it.size()
	case unixfs.Dir, unixfs.HAMT:
		info.Type = Directory
	case unixfs.Symlink:
		info.Type, info.Target, info.Size = Symlink, string(n.Data), int64(len(n.Data))
	case unixfs.Metadata:
		f, err := s.OpenFile(ctx, c)
		if err != nil {
			return Info{}, err
		}
		info.Type, info.Size = Regular, f.Size()
	}
	return info, nil
}
