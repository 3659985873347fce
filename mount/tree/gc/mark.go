// Package gc finds out which blocks are reachable: it walks DAGs from their
// roots and remembers what it has met, a few bytes for each block. It deletes
// nothing.
package gc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/ipfs/go-cid"
	dagpb "github.com/ipld/go-codec-dagpb"
	"github.com/ipld/go-ipld-prime/codec/dagcbor"
	"github.com/ipld/go-ipld-prime/codec/dagjson"
	"github.com/ipld/go-ipld-prime/datamodel"
	cidlink "github.com/ipld/go-ipld-prime/linking/cid"
	"github.com/ipld/go-ipld-prime/node/basicnode"
	"github.com/ipld/go-ipld-prime/traversal"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys/unixfs"
	"cafs/mount/tree/history"
	"cafs/store"
)

// Depth says how far a root is followed.
type Depth uint8

// The depths.
const (
	Deep   Depth = iota // all that is below
	Shards              // the blocks of a UnixFS directory itself, none of its entries
	Record              // the blocks of a map of entries itself, and values in blocks
)

// ErrUnreadable: a reachable block that links to others cannot be read, so that
// what is below is not known to be garbage or not.
var ErrUnreadable = errors.New("a reachable block cannot be read")

// Marker walks DAGs and marks what it meets. Methods may be called
// concurrently.
type Marker struct {
	Load unixfs.Load
	Set  *Set

	// Met, when set, is called once for every block that is marked, perhaps with
	// locks held.
	Met func(cid.Cid)
	// Unreadable, when set, hears of blocks that cannot be read; the rest is
	// walked all the same. Otherwise the first one ends the run.
	Unreadable func(cid.Cid, error)

	kept atomic.Int64 // blocks marked

	mu    sync.Mutex
	more  *sync.Cond
	queue []item // last in, first out
	busy  int    // items being walked
	err   error
	read  int64 // blocks read
}

type item struct {
	c     cid.Cid
	depth Depth
	class Class
	maybe bool // it need not be there, nor what is below it
}

// New returns a marker.
func New(load unixfs.Load) *Marker {
	m := &Marker{Load: load, Set: new(Set)}
	m.more = sync.NewCond(&m.mu)
	return m
}

// Add marks a root and queues what is below it. Leaves cost no look at the
// store.
func (m *Marker) Add(c cid.Cid, depth Depth, class Class) {
	m.add(item{c: c, depth: depth, class: class})
}

// AddMaybe marks what is about to become a root, with all that is below it, if
// it turns out to be there: blocks that are missing are no error.
func (m *Marker) AddMaybe(c cid.Cid, class Class) { m.add(item{c: c, class: class, maybe: true}) }

func (m *Marker) add(it item) {
	if m.mark(it.c, it.depth, it.class) {
		m.mu.Lock()
		m.queue = append(m.queue, it)
		m.mu.Unlock()
		m.more.Signal()
	}
}

// mark tells whether what is below c must be looked at. A block met at a lesser
// depth before is looked at again.
func (m *Marker) mark(c cid.Cid, depth Depth, class Class) bool {
	if !c.Defined() || c.Prefix().MhType == mh.IDENTITY {
		return false
	}
	reach := all
	switch {
	case c.Prefix().Codec == cid.Raw:
		reach = 0
	case depth != Deep:
		reach = own
	}
	fresh, more := m.Set.mark(c.Hash(), class, reach)
	if fresh {
		m.kept.Add(1)
		if m.Met != nil {
			m.Met(c)
		}
	}
	return more
}

// Run walks what is queued, and what that leads to, with a few workers, until
// nothing is left. Error: ErrUnreadable.
func (m *Marker) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { m.fail(context.Cause(ctx)) })
	defer stop()
	var wg sync.WaitGroup
	for range max(2, runtime.GOMAXPROCS(0)) {
		wg.Go(func() { m.work(ctx) })
	}
	wg.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

func (m *Marker) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.err = err
	}
	m.more.Broadcast()
}

// Marked is how many blocks are marked.
func (m *Marker) Marked() int64 { return m.kept.Load() }

// Reads is how many blocks were read.
func (m *Marker) Reads() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.read
}

func (m *Marker) work(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		for len(m.queue) == 0 && m.busy > 0 && m.err == nil {
			m.more.Wait()
		}
		if len(m.queue) == 0 || m.err != nil {
			m.more.Broadcast()
			return
		}
		it := m.queue[len(m.queue)-1]
		m.queue = m.queue[:len(m.queue)-1]
		m.busy++
		m.read++
		m.mu.Unlock()
		found, err := m.walk(ctx, it)
		runtime.Gosched()
		if m.Unreadable != nil && errors.Is(err, ErrUnreadable) {
			m.Unreadable(it.c, err)
			err = nil
		}
		m.mu.Lock()
		m.busy--
		if err != nil && m.err == nil {
			m.err = err
		}
		m.queue = append(m.queue, found...)
		m.more.Broadcast()
	}
}

// linksStep is how many links are marked before others may run: somebody waits
// for them, and for a collection nobody does. Between blocks they may, too.
const linksStep = 64

// walk marks what a block links to and returns what has to be walked next.
func (m *Marker) walk(ctx context.Context, it item) (next []item, err error) {
	block, err := m.Load(ctx, it.c)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if it.maybe && errors.Is(err, store.ErrNotFound) {
			return nil, nil // whoever refers to it all the same can read nothing below it
		}
		return nil, fmt.Errorf("gc: %s: %w: %w", it.c, ErrUnreadable, err)
	}
	seen := 0
	visit := func(c cid.Cid, depth Depth) {
		if seen++; seen%linksStep == 0 {
			runtime.Gosched()
		}
		if m.mark(c, depth, it.class) {
			next = append(next, item{c, depth, it.class, it.maybe})
		}
	}
	if err := links(it, block, visit); err != nil {
		return nil, fmt.Errorf("gc: %s: %w: %w", it.c, ErrUnreadable, err)
	}
	return next, nil
}

// links calls visit with the links of a block that its depth reaches.
func links(it item, block []byte, visit func(cid.Cid, Depth)) error {
	codec := it.c.Prefix().Codec
	switch {
	case it.depth == Record:
		return history.OwnRefs(block, func(c cid.Cid) error {
			visit(c, Record)
			return nil
		})
	case codec == cid.DagProtobuf:
		n, err := unixfs.DecodeNode(it.c, block)
		if err != nil && it.depth == Deep {
			return decoded(dagpb.Decode, dagpb.Type.PBNode, block, visit)
		} else if err != nil {
			return err
		}
		if it.depth == Deep {
			for _, l := range n.Links {
				visit(l.Cid, Deep)
			}
			return nil
		}
		if n.Type == unixfs.HAMT {
			for l := range n.Shards() {
				visit(l.Cid, Shards)
			}
		}
		return nil
	case codec == cid.DagCBOR:
		if c, ok := commit(block); ok {
			visit(c.Root.Cid, Deep)
			visit(c.Root.Record, Deep)
			visit(c.Links, Deep)
			for _, x := range c.Root.Xattrs {
				visit(x.Block, Deep)
			}
			return nil // parents are kept for their own sake, or not
		}
		if cborLinks(block, func(c cid.Cid) { visit(c, Deep) }) == nil {
			return nil
		}
		// Not in the one form that dag-cbor has; decoders may be more lenient.
		return decoded(dagcbor.Decode, basicnode.Prototype.Any, block, visit)
	case codec == 0x0129:
		return decoded(dagjson.Decode, basicnode.Prototype.Any, block, visit)
	}
	return nil // a codec without links, or one that we cannot follow
}

// commit decodes a block that is a commit.
func commit(block []byte) (history.Commit, bool) {
	if !bytes.Contains(block[:min(len(block), 64)], []byte("\x64root")) {
		return history.Commit{}, false // the shortest key comes first
	}
	c, err := history.Decode(block)
	return c, err == nil
}

// decoded visits the links of a block of any codec.
func decoded(decode func(datamodel.NodeAssembler, io.Reader) error, proto datamodel.NodePrototype, block []byte, visit func(cid.Cid, Depth)) error {
	nb := proto.NewBuilder()
	if err := decode(nb, bytes.NewReader(block)); err != nil {
		return err
	}
	all, err := traversal.SelectLinks(nb.Build())
	if err != nil {
		return err
	}
	for _, l := range all {
		if cl, ok := l.(cidlink.Link); ok {
			visit(cl.Cid, Deep)
		}
	}
	return nil
}

// Idle tells whether nothing is queued.
func (m *Marker) Idle() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.queue) == 0 && m.busy == 0
}

// Kept tells whether c and all below it are marked. It is for after the last Run.
func (m *Marker) Kept(c cid.Cid) bool {
	if c.Prefix().Codec != cid.Raw {
		return m.Set.reached(c.Hash()) >= all
	}
	_, ok := m.Set.Class(c.Hash())
	return ok
}

// Walk visits a DAG as far as depth, each block once, and goes on below where
// visit says so.
func Walk(ctx context.Context, load unixfs.Load, root cid.Cid, depth Depth, visit func(cid.Cid) (below bool, err error)) error {
	seen := map[string]bool{}
	todo := []item{{c: root, depth: depth}}
	for len(todo) > 0 {
		it := todo[len(todo)-1]
		c := it.c
		todo = todo[:len(todo)-1]
		if !c.Defined() || c.Prefix().MhType == mh.IDENTITY || seen[c.KeyString()] {
			continue
		}
		seen[c.KeyString()] = true
		below, err := visit(c)
		if err != nil {
			return err
		}
		if !below || c.Prefix().Codec == cid.Raw {
			continue
		}
		block, err := load(ctx, c)
		if err != nil {
			return err
		}
		if err := links(it, block, func(l cid.Cid, d Depth) { todo = append(todo, item{c: l, depth: d}) }); err != nil {
			return err
		}
	}
	return ctx.Err()
}
