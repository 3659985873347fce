package unixfs_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"cafs/linksys/linktest"
	"cafs/linksys/unixfs"

	dag "github.com/ipfs/boxo/ipld/merkledag"
	mdtest "github.com/ipfs/boxo/ipld/merkledag/test"
	"github.com/ipfs/boxo/ipld/unixfs/hamt"
	block "github.com/ipfs/go-block-format"
	format "github.com/ipfs/go-ipld-format"
	"github.com/spaolacci/murmur3"
)

// TestCollision: names of one hash, hundreds of them, are names like others in a
// HAMT of any fan-out, of a depth that their number explains. boxo cannot build
// it, but lists all of it and finds every other name.
func TestCollision(t *testing.T) {
	rnd := random(t)
	twins := linktest.Colliding(rnd, 600)
	if a, b := murmur3.Sum64([]byte(twins[0])), murmur3.Sum64([]byte(twins[1])); a != b {
		t.Fatalf("hashes %x and %x", a, b)
	}
	shard, err := hamt.NewShard(mdtest.Mock(), 256)
	if err != nil {
		t.Fatal(err)
	}
	var all []unixfs.Entry
	var last error
	for i := range 2000 {
		e, node := child(t, rnd, i)
		if i < len(twins) {
			e.Name = twins[i]
			last = errors.Join(last, shard.Set(t.Context(), e.Name, node))
		}
		all = append(all, e)
	}
	if last == nil {
		t.Error("boxo has a HAMT for names of one hash: build the same")
	}
	for _, fanout := range []int{8, 256, 1024} {
		p := unixfs.V1_2025
		p.Fanout, p.DirLimit = fanout, 1<<10
		store := blocks{}
		root, err := p.BuildDir(t.Context(), seq(all...), store.emit)
		if err != nil {
			t.Fatal(err)
		}
		if typ := checkDir(t, store, root, all); typ != unixfs.HAMT {
			t.Errorf("fan-out %d: a %s", fanout, typ)
		}
		depth, loads := 0, 0
		for _, name := range twins {
			loads = 0
			if _, err := unixfs.Find(t.Context(), store.counting(&loads), root.Cid, name); err != nil {
				t.Fatal(err)
			}
			depth = max(depth, loads)
		}
		hash := int(64 / math.Log2(float64(fanout)))
		if most := hash + 3 + int(30/math.Log2(float64(fanout))); depth <= hash || depth > most {
			t.Errorf("fan-out %d: %d levels, must be more than %d and at most %d", fanout, depth, hash, most)
		}
		if fanout <= 256 { // boxo's limit
			boxoReads(t, store, root, all, twins)
		}
	}
}

// boxoReads has boxo list a directory, and find all but some of its names.
func boxoReads(t *testing.T, store blocks, root unixfs.Root, all []unixfs.Entry, lost []string) {
	t.Helper()
	service := mdtest.Mock()
	var top format.Node
	for c, data := range store {
		b, err := block.NewBlockWithCid(data, c)
		if err != nil {
			t.Fatal(err)
		}
		node, err := dag.DecodeProtobufBlock(b)
		if err == nil {
			err = service.Add(t.Context(), node)
		}
		if err != nil {
			t.Fatal(err)
		}
		if c == root.Cid {
			top = node
		}
	}
	shard, err := hamt.NewHamtFromDag(service, top)
	if err != nil {
		t.Fatal(err)
	}
	links, err := shard.EnumLinks(t.Context())
	if err != nil || len(links) != len(all) {
		t.Errorf("boxo lists %d entries of %d, %v", len(links), len(all), err)
	}
	for _, e := range all {
		if _, err := shard.Find(t.Context(), e.Name); err != nil != slices.Contains(lost, e.Name) {
			t.Errorf("boxo finds %q: %v", e.Name, err)
		}
	}
}

// TestTooLongForABlock: a directory whose node would be no block is sharded,
// whatever the profile says, and one node again when it is shorter.
func TestTooLongForABlock(t *testing.T) {
	for _, setting := range []string{"dir-limit=0", "dir-size=none,dir-links=100000", "dir-size=links,dir-limit=2090000"} {
		p, err := unixfs.ParseProfile("unixfs-v1-2025," + setting)
		if err != nil {
			t.Fatal(err)
		}
		var all []unixfs.Entry
		for i := range 7100 { // of which 7,070 fit
			all = append(all, unixfs.Entry{Name: fmt.Sprintf("%0250d", i), Cid: someCid, Tsize: 1})
		}
		store := blocks{}
		var root unixfs.Root
		for _, n := range []int{7000, 7100, 7099, 7001} {
			want, err := p.BuildDir(t.Context(), seq(all[:n]...), store.emit)
			if err != nil {
				t.Fatal(err)
			}
			if len(store[want.Cid]) > unixfs.MaxBlock {
				t.Fatalf("%s: a block of %d bytes", setting, len(store[want.Cid]))
			}
			if root.Cid.Defined() {
				var changes []unixfs.Change
				for i, e := range all {
					changes = append(changes, unixfs.Change{Name: e.Name, Set: i < n, Entry: e})
				}
				if root, err = p.EditDirSized(t.Context(), store.load, root, changes, store.emit); err != nil || root != want {
					t.Errorf("%s: edited to %d entries: %+v, %v; want %+v", setting, n, root, err, want)
				}
			}
			root = want
			node, err := unixfs.DecodeNode(root.Cid, store[root.Cid])
			if err != nil || (node.Type == unixfs.HAMT) != (n > 7050) {
				t.Errorf("%s: %d entries are a %s, %v", setting, n, node.Type, err)
			}
		}
	}
}
