package linksys

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/ipfs/go-cid"
	unixfsnode "github.com/ipfs/go-unixfsnode"
	"github.com/ipld/go-ipld-prime/datamodel"
	"github.com/ipld/go-ipld-prime/linking"
	"github.com/ipld/go-ipld-prime/node/basicnode"
	"github.com/ipld/go-ipld-prime/traversal"
	"github.com/ipld/go-ipld-prime/traversal/selector"
	"github.com/ipld/go-ipld-prime/traversal/selector/builder"

	"cafs/linksys/unixfs"
)

// Target is where a path leads.
type Target struct {
	Cid cid.Cid
	// Remaining is the rest of the path inside that block, when it ends at a
	// value that is no link.
	Remaining []string
}

var specs = builder.NewSelectorSpecBuilder(basicnode.Prototype.Any)

// Resolve follows a slash-separated path from root: names of UnixFS
// directories, and keys and indexes of any other IPLD data. Empty segments do
// not count; symbolic links are not followed. It reads no more than it must: a
// block the path ends at is named, not loaded. Errors: fs.ErrNotExist for a
// name that is not there, unixfs.ErrNotDir for a path that goes on below a
// file, store.ErrNotFound for a missing block.
func (s *System) Resolve(ctx context.Context, root cid.Cid, path string) (Target, error) {
	segments := splitPath(path)
	if len(segments) == 0 {
		return Target{Cid: root}, nil
	}
	var t Target
	w := &walk{s: s, ctx: ctx}
	w.skip = func(lc linking.LinkContext, c cid.Cid) bool {
		if lc.LinkPath.Len() == len(segments) {
			t.Cid = c
			return true
		}
		return false
	}
	sel, err := pathSelector(segments, specs.Matcher())
	if err != nil {
		return Target{}, err
	}
	err = w.run(root, sel, func(p traversal.Progress, n datamodel.Node) error {
		c, err := linkCid(p.LastBlock.Link)
		t = Target{Cid: c, Remaining: segments[p.LastBlock.Path.Len():]}
		return err
	})
	if err != nil {
		return Target{}, err
	}
	if !t.Cid.Defined() {
		return Target{}, w.missing(root, path)
	}
	return t, nil
}

// missing is the error of a path that led nowhere.
func (w *walk) missing(root cid.Cid, path string) error {
	why := fs.ErrNotExist
	if w.noDir {
		why = unixfs.ErrNotDir
	}
	return fmt.Errorf("linksys: %s/%s: %w", root, strings.Trim(path, "/"), why)
}

func splitPath(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// pathSelector goes along a path, interpreting what it can as UnixFS, and
// applies target to its end.
func pathSelector(segments []string, target builder.SelectorSpec) (selector.Selector, error) {
	if len(segments) > maxWalkPath {
		return nil, fmt.Errorf("linksys: path of %d segments: %w", len(segments), ErrBudget)
	}
	node := unixfsnode.UnixFSPathSelectorBuilder(strings.Join(segments, "/"), target, false)
	sel, err := selector.CompileSelector(node)
	if err != nil {
		return nil, fmt.Errorf("linksys: selector of path %q: %w", segments, err)
	}
	return sel, nil
}

// Node loads the value a target names, for printing and for paths inside it.
// UnixFS nodes come as the dag-pb they are.
func (s *System) Node(ctx context.Context, t Target) (datamodel.Node, error) {
	ls := s.LinkSystem()
	l := link(t.Cid)
	lc := linking.LinkContext{Ctx: ctx}
	proto, err := chooser(l, lc)
	if err != nil {
		return nil, err
	}
	n, err := ls.Load(lc, l, proto)
	if err != nil {
		return nil, fmt.Errorf("linksys: load %s: %w", t.Cid, err)
	}
	for _, seg := range t.Remaining {
		if n, err = n.LookupBySegment(datamodel.ParsePathSegment(seg)); err != nil {
			return nil, fmt.Errorf("linksys: %s: %q: %w", t.Cid, seg, fs.ErrNotExist)
		}
	}
	return n, nil
}

// WriteJSON writes the value a target names as dag-json.
func (s *System) WriteJSON(ctx context.Context, w io.Writer, t Target) error {
	return s.Encode(ctx, w, t, codeDagJSON)
}

// Encode writes the value a target names with the codec of the given multicodec
// code. Errors: [ErrCodec].
func (s *System) Encode(ctx context.Context, w io.Writer, t Target, codec uint64) error {
	encode, err := codecs.LookupEncoder(codec)
	if err != nil {
		return fmt.Errorf("linksys: codec %#x: %w", codec, ErrCodec)
	}
	n, err := s.Node(ctx, t)
	if err != nil {
		return err
	}
	if err := encode(n, w); err != nil {
		return fmt.Errorf("linksys: encode %s: %w", t.Cid, err)
	}
	return nil
}

// CopyRange writes the bytes [from, to) of the file at a path below root; a
// negative bound counts from the end, and to may lie past it. Only the leaves
// that hold them are read.
func (s *System) CopyRange(ctx context.Context, w io.Writer, root cid.Cid, path string, from, to int64) (int64, error) {
	t, err := s.Resolve(ctx, root, path)
	if err != nil {
		return 0, err
	}
	if len(t.Remaining) > 0 {
		return 0, fmt.Errorf("linksys: %s/%s: %w", root, path, ErrNotFile)
	}
	f, err := s.OpenFile(ctx, t.Cid)
	if err != nil {
		return 0, err
	}
	from, to = bounds(from, to, f.Size())
	r := f.Reader(ctx)
	r.off = from
	return r.WriteRange(w, to-from)
}

// bounds turns a range with offsets from the end into one within n bytes.
func bounds(from, to, n int64) (int64, int64) {
	if from < 0 {
		from = max(n+from, 0)
	}
	if to < 0 {
		to = n + to
	}
	from = min(from, n)
	return from, max(min(to, n), from)
}
