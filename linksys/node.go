package linksys

import (
	"context"
	"fmt"
	"io"
	"sync"

	dagpb "github.com/ipld/go-codec-dagpb"
	"github.com/ipld/go-ipld-prime/codec"
	"github.com/ipld/go-ipld-prime/datamodel"
	"github.com/ipld/go-ipld-prime/linking"
	cidlink "github.com/ipld/go-ipld-prime/linking/cid"
	"github.com/ipld/go-ipld-prime/node/basicnode"
	"github.com/ipld/go-ipld-prime/node/mixins"

	"github.com/ipfs/go-cid"

	"cafs/linksys/unixfs"
)

// This file gives selectors a UnixFS view of blocks ("interpret as unixfs"): a
// directory is a map of names to links, sharded or not, and a file is bytes. It
// stands where go-unixfsnode would, on the same bounded decoder and cache as
// everything else here, and it passes errors on instead of losing them.

// pbProto builds a blockNode for one dag-pb block.
type pbProto struct{ c cid.Cid }

func (p pbProto) NewBuilder() datamodel.NodeBuilder {
	return &pbBuilder{NodeBuilder: dagpb.Type.PBNode.NewBuilder(), c: p.c}
}

// pbBuilder takes a block as a whole, through our decoder; any other use goes
// to the ordinary dag-pb builder.
type pbBuilder struct {
	datamodel.NodeBuilder
	c     cid.Cid
	block []byte
}

func (b *pbBuilder) Build() datamodel.Node {
	if b.block == nil {
		return b.NodeBuilder.Build()
	}
	return &blockNode{c: b.c, block: b.block}
}

// takeBlocks makes a decoder hand blocks to a pbBuilder undecoded. The dag-pb
// node is made when someone looks into it.
func takeBlocks(ls *linking.LinkSystem) {
	choose := ls.DecoderChooser
	ls.DecoderChooser = func(l datamodel.Link) (codec.Decoder, error) {
		decode, err := choose(l)
		if err != nil {
			return nil, fmt.Errorf("linksys: %s: %w", l, err)
		}
		return func(na datamodel.NodeAssembler, r io.Reader) error {
			if b, ok := na.(*pbBuilder); ok {
				if br, ok := r.(*blockReader); ok {
					b.block = br.Bytes()
					return nil
				}
			}
			return decode(na, r)
		}, nil
	}
}

// blockNode is a dag-pb block as the IPLD data model sees it, decoded on first use.
type blockNode struct {
	c     cid.Cid
	block []byte
	once  sync.Once
	pb    datamodel.Node
	err   error
}

// node decodes the block; a block that is none is an empty node with an error.
func (n *blockNode) node() datamodel.Node {
	n.once.Do(func() {
		nb := dagpb.Type.PBNode.NewBuilder()
		if n.err = dagpb.DecodeBytes(nb, n.block); n.err == nil {
			n.pb = nb.Build()
			return
		}
		n.err = fmt.Errorf("linksys: block %s: %w: %w", n.c, unixfs.ErrMalformed, n.err)
		n.pb = basicnode.NewString("")
	})
	return n.pb
}

func (n *blockNode) Kind() datamodel.Kind { return datamodel.Kind_Map }
func (n *blockNode) LookupByString(key string) (datamodel.Node, error) {
	if v := n.node(); n.err == nil {
		return v.LookupByString(key)
	}
	return nil, n.err
}
func (n *blockNode) LookupByNode(key datamodel.Node) (datamodel.Node, error) {
	k, err := key.AsString()
	if err != nil {
		return nil, err
	}
	return n.LookupByString(k)
}
func (n *blockNode) LookupByIndex(int64) (datamodel.Node, error) {
	return mixins.Map{TypeName: "PBNode"}.LookupByIndex(0)
}
func (n *blockNode) LookupBySegment(seg datamodel.PathSegment) (datamodel.Node, error) {
	return n.LookupByString(seg.String())
}
func (n *blockNode) MapIterator() datamodel.MapIterator {
	if v := n.node(); n.err == nil {
		return v.MapIterator()
	}
	return failedIterator{n.err}
}
func (n *blockNode) ListIterator() datamodel.ListIterator { return nil }
func (n *blockNode) Length() int64                        { return n.node().Length() }
func (n *blockNode) IsAbsent() bool                       { return false }
func (n *blockNode) IsNull() bool                         { return false }
func (n *blockNode) AsBool() (bool, error)                { return mixins.Map{TypeName: "PBNode"}.AsBool() }
func (n *blockNode) AsInt() (int64, error)                { return mixins.Map{TypeName: "PBNode"}.AsInt() }
func (n *blockNode) AsFloat() (float64, error)            { return mixins.Map{TypeName: "PBNode"}.AsFloat() }
func (n *blockNode) AsString() (string, error)            { return mixins.Map{TypeName: "PBNode"}.AsString() }
func (n *blockNode) AsBytes() ([]byte, error)             { return mixins.Map{TypeName: "PBNode"}.AsBytes() }
func (n *blockNode) AsLink() (datamodel.Link, error)      { return mixins.Map{TypeName: "PBNode"}.AsLink() }
func (n *blockNode) Prototype() datamodel.NodePrototype   { return dagpb.Type.PBNode }

// failedIterator reports why there is nothing to iterate over.
type failedIterator struct{ err error }

func (i failedIterator) Next() (datamodel.Node, datamodel.Node, error) { return nil, nil, i.err }
func (i failedIterator) Done() bool                                    { return false }

// dirNode is a directory as a map of names to links. It embeds the dag-pb node
// it came from for the methods a map has no use for.
type dirNode struct {
	datamodel.Node
	s    *System
	ctx  context.Context
	it   *item
	load loader
	fail func(error) // hears of errors a traversal would take for a missing name
}

func (n *dirNode) Kind() datamodel.Kind { return datamodel.Kind_Map }
func (n *dirNode) LookupByString(name string) (datamodel.Node, error) {
	e, err := lookup(n.ctx, n.it, name, n.load)
	if err != nil {
		if n.fail != nil {
			n.fail(err)
		}
		return nil, err
	}
	return basicnode.NewLink(cidlink.Link{Cid: e.Cid}), nil
}
func (n *dirNode) LookupByNode(key datamodel.Node) (datamodel.Node, error) {
	k, err := key.AsString()
	if err != nil {
		return nil, err
	}
	return n.LookupByString(k)
}
func (n *dirNode) LookupBySegment(seg datamodel.PathSegment) (datamodel.Node, error) {
	return n.LookupByString(seg.String())
}

// Length is the number of entries of a flat directory; that of a sharded one is
// not known without reading it, which a negative length tells.
func (n *dirNode) Length() int64 {
	if n.it.node.Type == unixfs.HAMT {
		return -1
	}
	return int64(len(n.it.node.Links))
}

func (n *dirNode) MapIterator() datamodel.MapIterator {
	it := &dirIterator{}
	for e, err := range n.s.list(n.ctx, n.it, n.load) {
		if err != nil {
			it.err = err
			break
		}
		it.entries = append(it.entries, e)
	}
	return it
}

// dirIterator iterates over a directory read in full: a map iterator has no end
// that could stop a half-read one. The names of a million entries take 100 MB.
type dirIterator struct {
	entries []Entry
	err     error
	i       int
}

func (i *dirIterator) Done() bool { return i.i >= len(i.entries) && i.err == nil }
func (i *dirIterator) Next() (datamodel.Node, datamodel.Node, error) {
	if i.i >= len(i.entries) {
		if i.err != nil {
			return nil, nil, i.err
		}
		return nil, nil, datamodel.ErrIteratorOverread{}
	}
	e := i.entries[i.i]
	i.i++
	return basicnode.NewString(e.Name), basicnode.NewLink(cidlink.Link{Cid: e.Cid}), nil
}

// fileNode is a file as bytes, read when asked for.
type fileNode struct {
	mixins.Bytes
	ctx context.Context
	f   *File
}

// maxAsBytes is the longest file that is handed out as one value.
const maxAsBytes = 64 << 20

func (n *fileNode) LookupBySegment(seg datamodel.PathSegment) (datamodel.Node, error) {
	return n.Bytes.LookupBySegment(seg)
}
func (n *fileNode) MapIterator() datamodel.MapIterator   { return nil }
func (n *fileNode) ListIterator() datamodel.ListIterator { return nil }
func (n *fileNode) Length() int64                        { return -1 }
func (n *fileNode) IsAbsent() bool                       { return false }
func (n *fileNode) IsNull() bool                         { return false }
func (n *fileNode) Prototype() datamodel.NodePrototype   { return basicnode.Prototype.Bytes }
func (n *fileNode) AsBytes() ([]byte, error) {
	if n.f.Size() > maxAsBytes {
		return nil, fmt.Errorf("linksys: file %s of %d bytes as one value: %w", n.f.c, n.f.Size(), ErrBudget)
	}
	p := make([]byte, n.f.Size())
	_, err := io.ReadFull(n.f.Reader(n.ctx), p)
	return p, err
}

// AsLargeBytes makes byte-range selectors read only the range.
func (n *fileNode) AsLargeBytes() (io.ReadSeeker, error) { return n.f.Reader(n.ctx), nil }

var (
	_ datamodel.LargeBytesNode = (*fileNode)(nil)
	_ datamodel.Node           = (*dirNode)(nil)
	_ datamodel.Node           = (*blockNode)(nil)
)
