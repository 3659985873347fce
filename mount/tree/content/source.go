package content

import (
	"cafs/mount/tree/index"

	"github.com/ipfs/go-cid"
)

// source is a sequence of bytes of a file that do not change any more, or only
// as long as no cut, worker or spill has seen them (see File.writable). Where
// the bytes can be found does change: in memory, in a staging record, in a
// block; at least one of these at any time. All fields are guarded by the
// file's mutex. A source belongs to one file.
type source struct {
	seq    uint64 // of the change that made it; unique in the file but for blocks made of older bytes
	n      int32  // bytes
	refs   int32  // fragments of the file's overlay that show it
	hole   bool   // all zeros, found nowhere
	frozen bool   // not to be written in place
	gone   bool   // disposed of; workers that still hold it throw their result away
	whole  bool   // the block's content is n bytes long
	own    bool   // the block is one that Config.Leaf makes; tsize is its length
	stored bool   // the block was flushed
	spills bool   // it is being written to staging by the spiller

	buf   *buf // buf.data[at:at+n], or nil
	at    int32
	place *place  // nil: not staged
	block cid.Cid // undefined: no block
	tsize uint64
}

// mem returns the bytes, which are in memory.
func (s *source) mem() []byte { return s.buf.data[s.at : s.at+s.n] }

// onlyMem tells whether the bytes would be lost with the memory.
func (s *source) onlyMem() bool { return s.buf != nil && s.place == nil && !s.block.Defined() }

// frag shows n bytes of a source, from skip on, at off in a chunk.
type frag struct {
	off, n, skip int32
	src          *source
}

func (g frag) end() int32 { return g.off + g.n }

// cutTo returns the part of g in [a, b).
func (g frag) cutTo(a, b int32) frag {
	a, b = max(a, g.off), min(b, g.end())
	return frag{off: a, n: b - a, skip: g.skip + a - g.off, src: g.src}
}

// published is an extent as the index has it.
type published struct {
	frag
	kind  index.ExtentKind
	place *place // Staged: where
}

func (p published) inline() bool { return p.kind == index.Inline }

// dispose gives up what src holds. No fragment and no cut shows it any more.
func (f *File) dispose(src *source) {
	if src.gone {
		return
	}
	src.gone = true
	f.dropMem(src)
	if src.place != nil {
		src.place.seg.unref()
		src.place = nil
	}
}

func (f *File) dropMem(src *source) {
	if src.buf != nil {
		f.fs.mem.release(src.buf)
		src.buf = nil
	}
}

// deref takes a fragment of src out of the overlay. Cuts may still show it.
func (f *File) deref(src *source) {
	src.refs--
	if src.refs > 0 {
		return
	}
	if f.cuts > 0 {
		f.grave = append(f.grave, src)
		return
	}
	f.dispose(src)
}
