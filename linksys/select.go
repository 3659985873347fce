package linksys

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ipfs/go-cid"
	"github.com/ipld/go-ipld-prime/datamodel"
	"github.com/ipld/go-ipld-prime/traversal"
	"github.com/ipld/go-ipld-prime/traversal/selector"
	selectorparse "github.com/ipld/go-ipld-prime/traversal/selector/parse"

	"cafs/linksys/cidset"
)

// Scope is how much of what a path leads to is selected; the terms are those of
// the trustless gateway specification (dag-scope).
type Scope uint8

const (
	ScopeAll    Scope = iota // everything below
	ScopeEntity              // the file, or the directory's own nodes
	ScopeBlock               // the one block
)

var scopeNames = [...]string{ScopeAll: "all", ScopeEntity: "entity", ScopeBlock: "block"}

// ErrScope: a text names no scope.
var ErrScope = errors.New("scope is none of all, entity, block")

// String returns the specification's word.
func (s Scope) String() string {
	if int(s) >= len(scopeNames) {
		return fmt.Sprintf("Scope(%d)", uint8(s))
	}
	return scopeNames[s]
}

// MarshalText implements encoding.TextMarshaler.
func (s Scope) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. Errors: [ErrScope].
func (s *Scope) UnmarshalText(text []byte) error {
	i := slices.Index(scopeNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("linksys: %q: %w", text, ErrScope)
	}
	*s = Scope(i)
	return nil
}

// ByteRange is the part [From, To) of a file; negative bounds count from the
// end, and To may lie past it.
type ByteRange struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// Selection says which blocks of a DAG are meant. The blocks a path goes through
// are always part of it, so that who gets them can verify that the path leads
// there.
type Selection struct {
	Path  string     `json:"path,omitempty"`
	Scope Scope      `json:"scope"`
	Bytes *ByteRange `json:"bytes,omitempty"` // of a file, with ScopeEntity
	// Selector, dag-json of an IPLD selector from the root, replaces all of the
	// above. "unixfs" can be interpreted in it.
	Selector string `json:"selector,omitempty"`
}

// Selected is a Selection in the DAG of one root. Its methods may be called
// concurrently.
type Selected struct {
	s     *System
	root  cid.Cid
	bytes *ByteRange
	sel   selector.Selector
	all   bool // sel leads to a block below which everything is wanted
}

// Select checks a selection: the selector can be compiled, the path leads
// somewhere. Errors: those of Resolve.
func (s *System) Select(ctx context.Context, root cid.Cid, o Selection) (*Selected, error) {
	v := &Selected{s: s, root: root, bytes: o.Bytes}
	var err error
	if o.Selector != "" {
		if v.sel, err = selectorparse.ParseAndCompileJSONSelector(o.Selector); err != nil {
			return nil, fmt.Errorf("linksys: selector: %w", err)
		}
		return v, nil
	}
	if _, err := s.Resolve(ctx, root, o.Path); err != nil {
		return nil, err
	}
	target := specs.Matcher()
	if o.Scope == ScopeEntity {
		target = specs.ExploreInterpretAs("unixfs", specs.Matcher())
	}
	v.all = o.Scope == ScopeAll
	v.sel, err = pathSelector(splitPath(o.Path), target)
	return v, err
}

// Blocks calls note for each block a traversal visits, once, in its order (depth
// first); its bytes are valid during the call. Blocks in identity CIDs do not
// count. An error of note ends it.
func (v *Selected) Blocks(ctx context.Context, note func(c cid.Cid, block []byte) error) error {
	return v.walk(ctx, note, nil)
}

// Sizes calls note for each block that Blocks would, in no order. Raw blocks are
// not read where that can be helped.
func (v *Selected) Sizes(ctx context.Context, note func(c cid.Cid, n int64)) error {
	return v.walk(ctx, func(c cid.Cid, block []byte) error { note(c, int64(len(block))); return nil }, note)
}

func (v *Selected) walk(ctx context.Context, note func(cid.Cid, []byte) error, sized func(cid.Cid, int64)) error {
	var seen cidset.Set
	w := &walk{s: v.s, ctx: ctx, pre: newPreloader(v.s, nil)}
	w.note = func(c cid.Cid, block []byte) error {
		if !seen.Add(c) || isIdentity(c) {
			return nil
		}
		return note(c, block)
	}
	if !v.all {
		return w.run(v.root, v.sel, func(_ traversal.Progress, n datamodel.Node) error { return v.consume(ctx, n) })
	}
	var below []cid.Cid
	err := w.run(v.root, v.sel, func(p traversal.Progress, n datamodel.Node) error {
		links, err := linksOf(n)
		below = append(below, links...)
		return err
	})
	if err != nil {
		return err
	}
	d := &descent{s: v.s, seen: &seen, note: w.note, sized: sized}
	return d.run(ctx, below)
}

// consume visits all blocks of a matched entity.
func (v *Selected) consume(ctx context.Context, n datamodel.Node) error {
	switch n := n.(type) {
	case *fileNode:
		from, to := int64(0), n.f.Size()
		if v.bytes != nil {
			from, to = bounds(v.bytes.From, v.bytes.To, n.f.Size())
		}
		return n.f.visit(ctx, from, to)
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
