package linksys

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/ipfs/go-cid"
	car "github.com/ipld/go-car/v2"
	"github.com/ipld/go-car/v2/index"
	carstorage "github.com/ipld/go-car/v2/storage"
	"github.com/ipld/go-ipld-prime/datamodel"
	"github.com/ipld/go-ipld-prime/traversal"
	"github.com/ipld/go-ipld-prime/traversal/selector"
	selectorparse "github.com/ipld/go-ipld-prime/traversal/selector/parse"
	"github.com/multiformats/go-multicodec"
)

// Scope is how much of what a path leads to is exported; the terms are those of
// the trustless gateway specification (dag-scope).
type Scope uint8

const (
	ScopeAll    Scope = iota // everything below
	ScopeEntity              // the file, or the directory's own nodes
	ScopeBlock               // the one block
)

// ByteRange is the part [From, To) of a file; negative bounds count from the
// end, and To may lie past it.
type ByteRange struct{ From, To int64 }

// ExportOptions say what goes into a CAR. The blocks a path goes through are
// always part of it, so that the reader can verify that the path leads there.
type ExportOptions struct {
	Path  string
	Scope Scope
	Bytes *ByteRange // of a file, with ScopeEntity
	// Selector, dag-json of an IPLD selector from the root, replaces all of the
	// above. "unixfs" can be interpreted in it.
	Selector string
	Version  int // of the CAR: 1 (also when 0), or 2 with an index
	// Progress hears of each block written; may be nil.
	Progress func(c cid.Cid, n int64)
}

// ExportStats counts what was written.
type ExportStats struct {
	Blocks, Bytes int64 // blocks, and bytes of blocks
	Written       int64 // bytes of the CAR
}

// Export writes a CAR of what a selector traversal from root visits, each block
// once, in the order of the traversal (depth first). A version 2 takes two
// traversals, as its header has the length; the index follows the blocks. After
// an error what was written is no complete CAR.
func (s *System) Export(ctx context.Context, w io.Writer, root cid.Cid, o ExportOptions) (ExportStats, error) {
	e := &export{s: s, ctx: ctx, root: root, o: o}
	if err := e.compile(); err != nil {
		return ExportStats{}, err
	}
	err := e.write(w)
	if err != nil {
		err = fmt.Errorf("linksys: export %s: %w", root, err)
	}
	return e.stats, err
}

// export is one Export.
type export struct {
	s    *System
	ctx  context.Context
	root cid.Cid
	o    ExportOptions
	sel  selector.Selector
	all  bool // sel leads to a block below which everything is wanted

	out   *bufio.Writer
	index []index.Record // version 2 only
	stats ExportStats
}

func (e *export) compile() (err error) {
	if e.o.Version < 0 || e.o.Version > 2 {
		return fmt.Errorf("linksys: export: no CAR version %d", e.o.Version)
	}
	if e.o.Selector != "" {
		if e.sel, err = selectorparse.ParseAndCompileJSONSelector(e.o.Selector); err != nil {
			return fmt.Errorf("linksys: export: selector: %w", err)
		}
		return nil
	}
	// A path that leads nowhere is found out before anything is written.
	if _, err := e.s.Resolve(e.ctx, e.root, e.o.Path); err != nil {
		return err
	}
	target := specs.Matcher()
	if e.o.Scope == ScopeEntity {
		target = specs.ExploreInterpretAs("unixfs", specs.Matcher())
	}
	e.all = e.o.Scope == ScopeAll
	e.sel, err = pathSelector(splitPath(e.o.Path), target)
	return err
}

func (e *export) write(w io.Writer) error {
	e.out = bufio.NewWriterSize(w, 1<<20)
	if e.o.Version == 2 {
		if err := e.header2(); err != nil {
			return err
		}
	}
	n, err := writeHeader(e.out, e.root)
	if err != nil {
		return err
	}
	start := e.stats.Written
	e.stats.Written += n
	if err := e.walk(func(c cid.Cid, block []byte) error { return e.section(c, block, start) }, nil); err != nil {
		return err
	}
	if e.o.Version == 2 {
		idx, err := index.New(multicodec.CarMultihashIndexSorted)
		if err != nil {
			return err
		}
		if err := idx.Load(e.index); err != nil {
			return err
		}
		n, err := index.WriteTo(idx, e.out)
		if err != nil {
			return err
		}
		e.stats.Written += int64(n)
	}
	return e.out.Flush()
}

// header2 finds out how long the blocks will be, and writes the header of a
// version 2 that says so.
func (e *export) header2() error {
	size, err := writeHeader(io.Discard, e.root)
	if err != nil {
		return err
	}
	add := func(c cid.Cid, n int64) { size += sectionSize(c, n) }
	if err := e.walk(func(c cid.Cid, block []byte) error { add(c, int64(len(block))); return nil }, add); err != nil {
		return err
	}
	n, err := e.out.Write(car.Pragma)
	if err != nil {
		return err
	}
	m, err := car.NewHeader(uint64(size)).WriteTo(e.out)
	e.stats.Written += int64(n) + m
	return err
}

// writeHeader writes a version 1 header and returns its length.
func writeHeader(w io.Writer, root cid.Cid) (int64, error) {
	cw := &countingWriter{w: w}
	_, err := carstorage.NewWritable(cw, []cid.Cid{root}, car.WriteAsCarV1(true))
	return cw.n, err
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

func sectionSize(c cid.Cid, n int64) int64 {
	body := int64(c.ByteLen()) + n
	return int64(len(binary.AppendUvarint(nil, uint64(body)))) + body
}

// section writes one block. start is where the version 1 part begins.
func (e *export) section(c cid.Cid, block []byte, start int64) error {
	if e.o.Version == 2 {
		e.index = append(e.index, index.Record{Cid: c, Offset: uint64(e.stats.Written - start)})
	}
	var head [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(head[:], uint64(c.ByteLen()+len(block)))
	for _, p := range [][]byte{head[:n], c.Bytes(), block} {
		if _, err := e.out.Write(p); err != nil {
			return err
		}
	}
	e.stats.Written += sectionSize(c, int64(len(block)))
	e.stats.Blocks++
	e.stats.Bytes += int64(len(block))
	if e.o.Progress != nil {
		e.o.Progress(c, int64(len(block)))
	}
	return nil
}

// walk calls note for each block once. With sized, raw blocks are not read where
// that can be helped, and only their lengths are told.
func (e *export) walk(note func(cid.Cid, []byte) error, sized func(cid.Cid, int64)) error {
	var seen cidSet
	w := &walk{s: e.s, ctx: e.ctx, pre: newPreloader(e.s, nil)}
	w.note = func(c cid.Cid, block []byte) error {
		if !seen.add(c) || isIdentity(c) {
			return nil
		}
		return note(c, block)
	}
	if !e.all {
		return w.run(e.root, e.sel, func(_ traversal.Progress, n datamodel.Node) error { return e.consume(n) })
	}
	var below []cid.Cid
	err := w.run(e.root, e.sel, func(p traversal.Progress, n datamodel.Node) error {
		links, err := linksOf(n)
		below = append(below, links...)
		return err
	})
	if err != nil {
		return err
	}
	d := &descent{s: e.s, seen: &seen, note: w.note, sized: sized}
	return d.run(e.ctx, below)
}

// consume visits all blocks of a matched entity.
func (e *export) consume(n datamodel.Node) error {
	switch n := n.(type) {
	case *fileNode:
		from, to := int64(0), n.f.Size()
		if e.o.Bytes != nil {
			from, to = bounds(e.o.Bytes.From, e.o.Bytes.To, n.f.Size())
		}
		return n.f.visit(e.ctx, from, to)
	case *dirNode:
		for _, err := range n.s.list(n.ctx, n.it, n.load) {
			if err != nil {
				return err
			}
		}
	case datamodel.LargeBytesNode: // a range, cut out of a file by a selector
		r, err := n.AsLargeBytes()
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, r); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	return nil
}
