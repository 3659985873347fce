package linksys

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/ipfs/go-cid"
	"github.com/ipld/go-ipld-prime/datamodel"
	"github.com/ipld/go-ipld-prime/linking"
	"github.com/ipld/go-ipld-prime/traversal"

	"cafs/linksys/cidset"
	"cafs/linksys/unixfs"
)

// descent goes through everything below some links, depth first, each block
// once: what the selector "explore all recursively" would visit, in its order,
// but without its recursion, so that a history of a million commits is no
// deeper than a file. It keeps the links not followed yet.
type descent struct {
	s    *System
	seen *cidset.Set // blocks not to visit (again)
	// note hears of each block, and adds it to seen. When sized is set, a raw
	// block is only measured and told to sized.
	note  func(c cid.Cid, block []byte) error
	sized func(c cid.Cid, n int64)
	ahead *preloader
}

func (d *descent) run(ctx context.Context, todo []cid.Cid) error {
	d.ahead = newPreloader(d.s, d.skip)
	todo = slices.Clone(todo)
	d.announce(todo)
	slices.Reverse(todo)
	for len(todo) > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if d.seen.Has(c) {
			continue
		}
		links, err := d.block(ctx, c)
		if err != nil {
			return err
		}
		d.announce(links)
		slices.Reverse(links)
		todo = append(todo, links...)
	}
	return nil
}

// DagSize is what a DAG takes in a store, each block counted once.
type DagSize struct {
	Blocks int64 `json:"blocks"`
	Bytes  int64 `json:"bytes"`
}

// Measure counts the blocks of the DAG below root. Raw blocks are not read.
// Blocks in identity CIDs do not count. Memory is 40 bytes for each block.
func (s *System) Measure(ctx context.Context, root cid.Cid) (DagSize, error) {
	var seen cidset.Set
	var size DagSize
	add := func(_ cid.Cid, n int64) { size.Blocks, size.Bytes = size.Blocks+1, size.Bytes+n }
	d := &descent{s: s, seen: &seen, sized: add}
	d.note = func(c cid.Cid, block []byte) error {
		if seen.Add(c) && !isIdentity(c) {
			add(c, int64(len(block)))
		}
		return nil
	}
	err := d.run(ctx, []cid.Cid{root})
	return size, err
}

// skip tells the preloader what will not be read.
func (d *descent) skip(c cid.Cid) bool {
	return d.sized != nil && c.Prefix().Codec == cid.Raw || d.seen.Has(c)
}

func (d *descent) announce(links []cid.Cid) {
	for _, c := range links {
		d.ahead.link(c)
	}
}

func (d *descent) block(ctx context.Context, c cid.Cid) ([]cid.Cid, error) {
	if d.sized != nil && c.Prefix().Codec == cid.Raw {
		n, err := d.s.size(ctx, c)
		if err == nil && d.seen.Add(c) && !isIdentity(c) {
			d.sized(c, n)
		}
		return nil, err
	}
	d.ahead.reached(c)
	if c.Prefix().Codec == cid.Raw {
		it, err := d.s.cache.borrow(ctx, c)
		if err != nil {
			return nil, err
		}
		defer d.s.cache.giveBack(it)
		return nil, d.note(c, it.block)
	}
	block, err := d.s.block(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := d.note(c, block); err != nil {
		return nil, err
	}
	if !mayLink(c) {
		return nil, nil
	}
	return d.s.links(ctx, c, block)
}

// mayLink tells whether blocks of this codec can have links we can find.
func mayLink(c cid.Cid) bool {
	codec := c.Prefix().Codec
	return codec != cid.Raw && Supported(codec)
}

// links returns the links in a block, in order.
func (s *System) links(ctx context.Context, c cid.Cid, block []byte) ([]cid.Cid, error) {
	codec := c.Prefix().Codec
	if codec == cid.DagProtobuf {
		if n, err := unixfs.DecodeNode(c, block); err == nil {
			links := make([]cid.Cid, len(n.Links))
			for i, l := range n.Links {
				links[i] = l.Cid
			}
			return links, nil
		}
	}
	proto, err := chooser(link(c), linking.LinkContext{Ctx: ctx})
	if err != nil {
		return nil, err
	}
	decode, err := codecs.LookupDecoder(codec)
	if err != nil {
		return nil, err
	}
	nb := proto.NewBuilder()
	if err := decode(nb, bytes.NewBuffer(block)); err != nil {
		return nil, fmt.Errorf("linksys: block %s: %w: %w", c, unixfs.ErrMalformed, err)
	}
	return linksOf(nb.Build())
}

// linksOf returns the links in a value, in order.
func linksOf(n datamodel.Node) ([]cid.Cid, error) {
	found, err := traversal.SelectLinks(n)
	if err != nil {
		return nil, err
	}
	links := make([]cid.Cid, 0, len(found))
	for _, l := range found {
		c, err := linkCid(l)
		if err != nil {
			return nil, err
		}
		links = append(links, c)
	}
	return links, nil
}
