package car

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/ipfs/go-cid"
	gocar "github.com/ipld/go-car/v2"
	"github.com/ipld/go-car/v2/index"
	carstorage "github.com/ipld/go-car/v2/storage"
	"github.com/multiformats/go-multicodec"

	"cafs/linksys"
)

// ExportOptions say what goes into a CAR, and how.
type ExportOptions struct {
	linksys.Selection
	Version int // of the CAR: 1 (also when 0), or 2 with an index
	// Progress hears of each block written; may be nil.
	Progress func(c cid.Cid, n int64)
}

// ExportStats counts what was written.
type ExportStats struct {
	Blocks  int64 `json:"blocks"`
	Bytes   int64 `json:"bytes"`   // of blocks
	Written int64 `json:"written"` // bytes of the CAR
}

// Export writes a CAR of what is selected below root, each block once, in the
// order of the traversal (depth first). Nothing is written when the selection
// leads nowhere. A version 2 takes two traversals, as its header has the length;
// the index follows the blocks, and takes about 60 bytes of memory for each.
// After an error what was written is no complete CAR.
func Export(ctx context.Context, sys *linksys.System, w io.Writer, root cid.Cid, o ExportOptions) (ExportStats, error) {
	if o.Version < 0 || o.Version > 2 {
		return ExportStats{}, fmt.Errorf("car: no version %d", o.Version)
	}
	sel, err := sys.Select(ctx, root, o.Selection)
	if err != nil {
		return ExportStats{}, fmt.Errorf("car: %w", err)
	}
	e := &export{ctx: ctx, root: root, sel: sel, o: o, out: bufio.NewWriterSize(w, 1<<20)}
	if err := e.write(); err != nil {
		return e.stats, fmt.Errorf("car: %w", err)
	}
	return e.stats, nil
}

// export is one Export.
type export struct {
	ctx  context.Context
	root cid.Cid
	sel  *linksys.Selected
	o    ExportOptions

	out   *bufio.Writer
	start int64          // where the version 1 part begins
	index []index.Record // version 2 only
	stats ExportStats
}

func (e *export) write() error {
	if e.o.Version == 2 {
		if err := e.header2(); err != nil {
			return err
		}
	}
	e.start = e.stats.Written
	n, err := writeHeader(e.out, e.root)
	e.stats.Written += n
	if err != nil {
		return err
	}
	if err := e.sel.Blocks(e.ctx, e.section); err != nil {
		return err
	}
	if e.o.Version == 2 {
		if err := e.writeIndex(); err != nil {
			return err
		}
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
	if err := e.sel.Sizes(e.ctx, func(c cid.Cid, n int64) { size += sectionSize(c, n) }); err != nil {
		return err
	}
	n, err := e.out.Write(gocar.Pragma)
	e.stats.Written += int64(n)
	if err != nil {
		return err
	}
	m, err := gocar.NewHeader(uint64(size)).WriteTo(e.out)
	e.stats.Written += m
	return err
}

// writeHeader writes a version 1 header and returns its length.
func writeHeader(w io.Writer, root cid.Cid) (int64, error) {
	cw := &countingWriter{w: w}
	_, err := carstorage.NewWritable(cw, []cid.Cid{root}, gocar.WriteAsCarV1(true))
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

// section writes one block.
func (e *export) section(c cid.Cid, block []byte) error {
	if e.o.Version == 2 {
		e.index = append(e.index, index.Record{Cid: c, Offset: uint64(e.stats.Written - e.start)})
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

func (e *export) writeIndex() error {
	idx, err := index.New(multicodec.CarMultihashIndexSorted)
	if err != nil {
		return err
	}
	if err := idx.Load(e.index); err != nil {
		return err
	}
	n, err := index.WriteTo(idx, e.out)
	e.stats.Written += int64(n)
	return err
}
