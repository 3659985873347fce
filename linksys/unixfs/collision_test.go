package unixfs_test

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"cafs/linksys/unixfs"

	dag "github.com/ipfs/boxo/ipld/merkledag"
	mdtest "github.com/ipfs/boxo/ipld/merkledag/test"
	"github.com/ipfs/boxo/ipld/unixfs/hamt"
	uio "github.com/ipfs/boxo/ipld/unixfs/io"
	"github.com/spaolacci/murmur3"
)

// colliding makes n names of one murmur3 hash: the second block of each leads
// the hash from wherever the first one led it to one and the same state.
func colliding(rnd *rand.Rand, n int) (names []string) {
	const c1, c2, add1, add2 = 0x87c37b91114253d5, 0x4cf5ad432745937f, 0x52dce729, 0x38495ab5
	inverse := func(odd uint64) uint64 {
		x := odd
		for range 6 {
			x *= 2 - odd*x
		}
		return x
	}
	var end1, end2 uint64 = rnd.Uint64(), rnd.Uint64()
	for len(names) < n {
		name := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, rnd.Uint64()), rnd.Uint64())
		h1 := bits.RotateLeft64(binary.LittleEndian.Uint64(name)*c1, 31) * c2
		h1 = bits.RotateLeft64(h1, 27)*5 + add1
		h2 := bits.RotateLeft64(binary.LittleEndian.Uint64(name[8:])*c2, 33) * c1
		h2 = (bits.RotateLeft64(h2, 31)+h1)*5 + add2
		mixed := bits.RotateLeft64((end1-add1)*inverse(5)-h2, -27) ^ h1
		name = binary.LittleEndian.AppendUint64(name, bits.RotateLeft64(mixed*inverse(c2), -31)*inverse(c1))
		mixed = bits.RotateLeft64((end2-add2)*inverse(5)-end1, -31) ^ h2
		name = binary.LittleEndian.AppendUint64(name, bits.RotateLeft64(mixed*inverse(c1), -33)*inverse(c2))
		if !strings.ContainsAny(string(name), "/\x00") {
			names = append(names, string(name))
		}
	}
	return names
}

// TestCollision: a directory with names of one hash is one node that boxo reads,
// up to the length of a block; a larger one is an error that names them, and is
// sharded as soon as one of them is gone.
func TestCollision(t *testing.T) {
	rnd := random(t)
	twins := colliding(rnd, 2)
	if a, b := murmur3.Sum64([]byte(twins[0])), murmur3.Sum64([]byte(twins[1])); a != b {
		t.Fatalf("hashes %x and %x", a, b)
	}
	entries := func(n int) []unixfs.Entry {
		all := []unixfs.Entry{{Name: twins[0], Cid: someCid, Tsize: 1}, {Name: twins[1], Cid: someCid, Tsize: 1}}
		for i := range n {
			all = append(all, unixfs.Entry{Name: fmt.Sprintf("%0255d", i), Cid: someCid, Tsize: 1})
		}
		return all
	}
	p := unixfs.V1_2025
	shard, err := hamt.NewShard(mdtest.Mock(), p.Fanout)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range twins {
		_, node := child(t, rnd, i)
		if err = shard.Set(t.Context(), name, node); err != nil {
			break
		}
	}
	if err == nil {
		t.Error("boxo has a HAMT for names of one hash")
	}

	store := blocks{}
	flat, err := p.BuildDir(t.Context(), seq(entries(6000)...), store.emit)
	if err != nil || len(store) != 1 {
		t.Fatalf("%d blocks, %v", len(store), err)
	}
	node, err := dag.DecodeProtobuf(store[flat.Cid])
	if err != nil {
		t.Fatal(err)
	}
	dir, err := uio.NewDirectoryFromNode(mdtest.Mock(), node)
	if err != nil {
		t.Fatal(err)
	}
	if links, err := dir.Links(t.Context()); err != nil || len(links) != 6002 {
		t.Errorf("boxo lists %d entries, %v", len(links), err)
	}

	store = blocks{}
	_, err = p.BuildDir(t.Context(), seq(entries(7000)...), store.emit)
	wantCollision(t, err, twins)
	if len(store) > 0 {
		t.Errorf("%d blocks of a directory that cannot be", len(store))
	}
	large, err := p.BuildDir(t.Context(), seq(entries(7000)[1:]...), store.emit)
	if err != nil {
		t.Fatal(err)
	}
	change := []unixfs.Change{{Name: twins[0], Set: true, Entry: entries(0)[0]}}
	_, err = p.EditDirSized(t.Context(), store.load, large, change, store.emit)
	wantCollision(t, err, twins)
	change = append(change, unixfs.Change{Name: twins[1]})
	if swapped, err := p.EditDirSized(t.Context(), store.load, large, change, store.emit); err != nil || checkDir(t, store, swapped, append(entries(7000)[:1], entries(7000)[2:]...)) != unixfs.HAMT {
		t.Errorf("one for the other: %+v, %v", swapped, err)
	}
}

func wantCollision(t *testing.T, err error, names []string) {
	t.Helper()
	wantErr(t, unixfs.ErrCollision, func() error { return err })
	for _, name := range names {
		if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
			t.Errorf("%v: does not name %q", err, name)
		}
	}
}
