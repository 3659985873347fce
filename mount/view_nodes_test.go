package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/ipfs/go-cid"

	"cafs/linksys"
	"cafs/linksys/unixfs"
	"cafs/mount/tree"
	"cafs/store"
)

// testView is a view over a store that holds one directory of n empty files.
func testView(t *testing.T, n int) (*view, cid.Cid) {
	t.Helper()
	ctx := t.Context()
	blocks := store.NewMem()
	put := func(b unixfs.Block) error { return blocks.Put(ctx, b.Cid, b.Data) }
	leaf, err := unixfs.V1_2025.Leaf(nil)
	if err != nil {
		t.Fatal(err)
	}
	var entries iter.Seq2[unixfs.Entry, error] = func(yield func(unixfs.Entry, error) bool) {
		for i := range n {
			if !yield(unixfs.Entry{Name: fmt.Sprintf("file with a name, number %d", i), Cid: leaf.Cid}, nil) {
				return
			}
		}
	}
	root, err := unixfs.V1_2025.BuildDir(ctx, entries, put)
	if err != nil {
		t.Fatal(errors.Join(err, put(leaf)))
	}
	if err := put(leaf); err != nil {
		t.Fatal(err)
	}
	sys := linksys.New(blocks, linksys.Options{})
	t.Cleanup(func() { sys.Close() })
	v := newView(Options{Sys: sys}, 1, 2, func(uint64) {})
	t.Cleanup(v.close)
	return v, root.Cid
}

// TestViewForget: what the kernel has forgotten leaves nothing behind.
func TestViewForget(t *testing.T) {
	v, dir := testView(t, 3000)
	ctx := context.Background()
	find := func(parent uint64, name string) *node {
		t.Helper()
		n, err := v.lookup(ctx, parent, name)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	top := find(uint64(tree.RootIno), reserved)
	ipfs := find(top.id, "ipfs")
	root := find(ipfs.id, dir.String())
	file := find(root.id, "file with a name, number 7")
	if again := find(root.id, "file with a name, number 7"); again != file {
		t.Error("one path has two nodes")
	}
	if _, err := v.lookup(ctx, root.id, "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing name: %v", err)
	}
	if _, err := v.lookup(ctx, ipfs.id, "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no CID: %v", err)
	}
	// Listings under way, more than are kept.
	for i := range uint64(maxLists + 2) {
		if err := v.list(root, i, func(string, uint32) bool { return false }); err != nil {
			t.Fatal(err)
		}
	}
	if len(root.lists) != maxLists {
		t.Errorf("%d listings kept, want %d", len(root.lists), maxLists)
	}
	v.forget(file.id, 1)
	if _, err := v.get(file.id); err != nil {
		t.Errorf("forgotten too early: %v", err)
	}
	for _, n := range []*node{file, root, ipfs, top} {
		v.forget(n.id, 1)
	}
	if len(root.lists) != 0 {
		t.Errorf("%d listings of a forgotten node", len(root.lists))
	}
	if got, want := len(v.nodes), 1+len(fixed); got != want {
		t.Errorf("%d nodes are left, want the fixed %d", got, want)
	}
}

// TestViewListing: a directory is listed whole whatever fits into an answer,
// and a listing that goes on reads no entry twice.
func TestViewListing(t *testing.T) {
	const files = 3000
	v, dir := testView(t, files)
	n, err := v.lookup(context.Background(), ipfsID, dir.String())
	if err != nil {
		t.Fatal(err)
	}
	f := &fileSystem{view: v}
	for _, size := range []int{100, 4096, 1 << 16} {
		var names []string
		for off := uint64(0); ; {
			list := fuse.NewDirEntryList(make([]byte, size), off)
			in := &fuse.ReadIn{Offset: off}
			in.NodeId = n.id
			if st := f.readDirView(nil, in, list.AddDirEntry); !st.Ok() {
				t.Fatal(st)
			}
			entries, err := fuse.ParseDirEntries(list.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			if len(entries) == 0 {
				break
			}
			for _, e := range entries {
				names = append(names, e.Name)
			}
			off = entries[len(entries)-1].Off
			if len(n.lists) > 1 {
				t.Fatalf("%d listings for one reader", len(n.lists))
			}
		}
		slices.Sort(names)
		if got := len(slices.Compact(names)); got != files+2 || got != len(names) {
			t.Errorf("answers of %d bytes: %d names, %d different, want %d", size, len(names), got, files+2)
		}
	}
}

// TestNodeID: ids of the view are none of the tree's, nor that of go-fuse.
func TestNodeID(t *testing.T) {
	id := uint64(tree.RootIno)
	for i := range 1000 {
		id = nodeID(id, fmt.Sprint(i))
		if !isView(id) || id >= firstViewID|1<<62 {
			t.Fatalf("id %#x", id)
		}
	}
}
