package unixfs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"testing"

	"cafs/linksys/unixfs"

	dag "github.com/ipfs/boxo/ipld/merkledag"
	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
)

// A little protobuf for blocks that no sane writer makes.
func field(tag byte, v uint64) []byte { return binary.AppendUvarint([]byte{tag}, v) }
func blob(tag byte, v []byte) []byte {
	return append(binary.AppendUvarint([]byte{tag}, uint64(len(v))), v...)
}
func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

var someCid = cid.NewCidV1(cid.Raw, mustSum([]byte("some")))

func mustSum(b []byte) mh.Multihash {
	h, err := mh.Sum(b, mh.SHA2_256, -1)
	if err != nil {
		panic(err)
	}
	return h
}

func pbLink(c cid.Cid, name string) []byte {
	return blob(0x12, join(blob(0x0a, c.Bytes()), blob(0x12, []byte(name)), field(0x18, 1)))
}

func unixMsg(parts ...[]byte) []byte { return blob(0x0a, join(parts...)) }

func shardMsg(bitfield []byte, hash, fanout uint64) []byte {
	return unixMsg(field(0x08, 5), blob(0x12, bitfield), field(0x28, hash), field(0x30, fanout))
}

func put(s blocks, data []byte) cid.Cid {
	c := cid.NewCidV1(cid.DagProtobuf, mustSum(data))
	s[c] = data
	return c
}

// TestMalformed: each block is refused by the decoder.
func TestMalformed(t *testing.T) {
	dir, file := field(0x08, 1), field(0x08, 2)
	link := pbLink(someCid, "")
	many := bytes.Repeat(pbLink(someCid, "00"), 1)
	for name, block := range map[string][]byte{
		"empty":                  {},
		"no type":                unixMsg(),
		"no data":                pbLink(someCid, "a"),
		"type 6":                 unixMsg(field(0x08, 6)),
		"type 2^64-1":            unixMsg(field(0x08, math.MaxUint64)),
		"varint of 11 bytes":     unixMsg(join([]byte{0x08}, bytes.Repeat([]byte{0x80}, 10), []byte{1})),
		"varint cut":             {0x0a},
		"length beyond the end":  {0x0a, 0x7f, 0x08},
		"length 2^63":            join([]byte{0x0a}, binary.AppendUvarint(nil, 1<<63)),
		"data twice":             join(unixMsg(dir), unixMsg(dir)),
		"type twice":             unixMsg(dir, file),
		"links around data":      join(pbLink(someCid, "a"), unixMsg(dir), pbLink(someCid, "b")),
		"field 3":                join(unixMsg(dir), blob(0x1a, nil)),
		"field 0":                join([]byte{0x02, 0}, unixMsg(dir)),
		"group":                  unixMsg(dir, []byte{9<<3 | 3}),
		"link without CID":       join(blob(0x12, blob(0x12, []byte("a"))), unixMsg(dir)),
		"link with empty CID":    join(blob(0x12, blob(0x0a, nil)), unixMsg(dir)),
		"link with half a CID":   join(blob(0x12, blob(0x0a, someCid.Bytes()[:20])), unixMsg(dir)),
		"link with a longer CID": join(blob(0x12, blob(0x0a, append(someCid.Bytes(), 0))), unixMsg(dir)),
		"link fields reversed":   join(blob(0x12, join(blob(0x12, nil), blob(0x0a, someCid.Bytes()))), unixMsg(dir)),
		"size too small":         unixMsg(file, blob(0x12, []byte("abc")), field(0x18, 2)),
		"size too large":         unixMsg(file, field(0x18, 1<<60)),
		"sizes do not add up":    join(link, unixMsg(file, field(0x18, 9), field(0x20, 8))),
		"sizes overflow":         join(link, link, unixMsg(file, field(0x18, 1), field(0x20, 1<<63), field(0x20, 1<<63+1))),
		"more sizes than links":  join(link, unixMsg(file, field(0x18, 2), field(0x20, 1), field(0x20, 1))),
		"fewer sizes":            join(link, link, unixMsg(file, field(0x18, 1), field(0x20, 1))),
		"sizes apart":            join(link, link, unixMsg(field(0x20, 1), file, field(0x20, 1))),
		"sizes packed and not":   join(link, link, unixMsg(file, field(0x20, 1), blob(0x22, []byte{1}))),
		"mtime of 2 s":           unixMsg(dir, blob(0x42, join(field(0x08, 1), []byte{0x15, 0, 0, 0, 0x80}))),
		"mtime without seconds":  unixMsg(dir, blob(0x42, []byte{0x15, 1, 0, 0, 0})),
		"mtime cut":              unixMsg(dir, blob(0x42, []byte{0x08, 1, 0x15, 1})),
		"fan-out 0":              shardMsg(nil, 0x22, 0),
		"fan-out 3":              shardMsg(nil, 0x22, 3),
		"fan-out 4":              shardMsg(nil, 0x22, 4),
		"fan-out 2^20":           shardMsg(nil, 0x22, 1<<20),
		"fan-out 2^63":           shardMsg(nil, 0x22, 1<<63),
		"hash sha2-256":          join(many, shardMsg([]byte{1}, 0x12, 256)),
		"bitfield too long":      join(many, shardMsg(append(make([]byte, 32), 1), 0x22, 256)),
		"more bits than links":   join(many, shardMsg([]byte{3}, 0x22, 256)),
		"more links than bits":   join(many, many, shardMsg([]byte{1}, 0x22, 256)),
		"another slot":           join(many, shardMsg([]byte{2}, 0x22, 256)),
		"lower-case slot":        join(pbLink(someCid, "0a"), shardMsg([]byte{4, 0}, 0x22, 256)),
		"short link name":        join(pbLink(someCid, "0"), shardMsg([]byte{1}, 0x22, 256)),
		"too long":               unixMsg(file, blob(0x12, make([]byte, unixfs.MaxBlock))),
	} {
		s := blocks{}
		c := put(s, block)
		n, err := unixfs.DecodeNode(c, block)
		if !errors.Is(err, unixfs.ErrMalformed) {
			t.Errorf("%s: %+v, %v", name, n, err)
		}
		// Editing on top of it must not fare worse than decoding.
		if r, err := unixfs.V1_2025.EditDir(t.Context(), s.load, c, []unixfs.Change{{Name: "x"}}, discard); err == nil {
			t.Errorf("%s: edited to %+v", name, r)
		}
	}
	_, err := unixfs.DecodeNode(cid.NewCidV1(cid.DagCBOR, mustSum(nil)), nil)
	wantErr(t, unixfs.ErrMalformed, func() error { return err })
}

// TestNames: bad names are reported one by one, and refused when building.
func TestNames(t *testing.T) {
	bad := []string{"", ".", "..", "a/b", "/", "a\x00", strings.Repeat("n", 256)}
	good := []string{"...", "a b", "\xff\xfe", "\n", "..a", strings.Repeat("n", 255)}
	var links []byte
	for _, name := range slices.Concat(bad, good, good[:1]) {
		links = append(links, pbLink(someCid, name)...)
	}
	s := blocks{}
	c := put(s, join(links, unixMsg(field(0x08, 1))))
	var got []string
	wrong := 0
	for e, err := range unixfs.List(t.Context(), s.load, c) {
		if err == nil {
			got = append(got, e.Name)
		} else if errors.Is(err, unixfs.ErrName) {
			wrong++
		} else {
			t.Fatal(err)
		}
	}
	if !slices.Equal(got, good) || wrong != len(bad)+1 {
		t.Errorf("listed %q and %d wrong names", got, wrong)
	}
	p := unixfs.V1_2025
	for _, name := range bad {
		e := unixfs.Entry{Name: name, Cid: someCid}
		wantErr(t, unixfs.ErrName, func() error { _, err := p.BuildDir(t.Context(), seq(e), discard); return err })
		wantErr(t, unixfs.ErrName, func() error {
			_, err := p.EditDir(t.Context(), nil, cid.Undef, []unixfs.Change{{Name: name, Set: true, Entry: unixfs.Entry{Cid: someCid}}}, discard)
			return err
		})
	}
	for _, limit := range []int{1, 1 << 18} { // sharded and not
		p.DirLimit = limit
		e := unixfs.Entry{Name: "twice", Cid: someCid}
		wantErr(t, unixfs.ErrName, func() error { _, err := p.BuildDir(t.Context(), seq(e, e), discard); return err })
	}
	wantErr(t, unixfs.ErrName, func() error { _, err := p.EditDir(t.Context(), s.load, c, nil, discard); return err })
	wantErr(t, fs.ErrNotExist, func() error { _, err := unixfs.Find(t.Context(), s.load, c, "nobody"); return err })
	file := put(s, unixMsg(field(0x08, 2)))
	wantErr(t, unixfs.ErrNotDir, func() error { _, err := unixfs.Find(t.Context(), s.load, file, "x"); return err })
	wantErr(t, unixfs.ErrNotDir, func() error { _, err := p.EditDir(t.Context(), s.load, file, nil, discard); return err })
}

// TestHamtBombs: HAMTs made to be walked for ever, or to hide entries, end after
// a load for each of the 40 levels that a name has.
func TestHamtBombs(t *testing.T) {
	full := bytes.Repeat([]byte{0xff}, 32)
	node := func(child cid.Cid) []byte { // 256 times the same child
		var links []byte
		for i := range 256 {
			links = append(links, pbLink(child, fmt.Sprintf("%02X", i))...)
		}
		return join(links, shardMsg(full, 0x22, 256))
	}
	for name, bottom := range map[string][]byte{
		"empty node":    shardMsg(nil, 0x22, 256),
		"misplaced":     join(pbLink(someCid, "00hidden"), shardMsg([]byte{1}, 0x22, 256)),
		"other fan-out": join(pbLink(someCid, "0"), shardMsg([]byte{1}, 0x22, 8)),
		"file":          unixMsg(field(0x08, 2)),
	} {
		for _, depth := range []int{1, 3, 60} {
			s := blocks{}
			top := put(s, bottom)
			for range depth {
				top = put(s, node(top))
			}
			loads := 0
			load := s.counting(&loads)
			var err error
			for _, err = range unixfs.List(t.Context(), load, top) {
			}
			if !errors.Is(err, unixfs.ErrMalformed) || loads > 41 {
				t.Errorf("%s below %d nodes: %d loads, %v", name, depth, loads, err)
			}
			_, err = unixfs.Find(t.Context(), load, top, "x")
			if name != "misplaced" && !errors.Is(err, unixfs.ErrMalformed) || err == nil || loads > 2*41 {
				t.Errorf("%s below %d nodes: find: %d loads, %v", name, depth, loads, err)
			}
			if r, err := unixfs.V1_2025.EditDir(t.Context(), load, top, []unixfs.Change{{Name: "x", Set: true, Entry: unixfs.Entry{Cid: someCid}}}, discard); err == nil || loads > 3*41 {
				t.Errorf("%s below %d nodes: %d loads, edited to %+v", name, depth, loads, r)
			}
		}
	}
}

// TestDeepHamt: a HAMT in which the way to a name goes on when all its bits are
// used up.
func TestDeepHamt(t *testing.T) {
	const fanout = 256
	s, name, loads := blocks{}, "deep", 0
	top := put(s, join(pbLink(someCid, "00"+name), shardMsg([]byte{1}, 0x22, fanout)))
	for level := 39; level >= 0; level-- {
		slot, ok := unixfs.Slot(name, level, fanout)
		digits, _ := unixfs.SlotDigits(name, level, fanout)
		if !ok || digits != fmt.Sprintf("%02X", slot) {
			t.Fatalf("level %d: slot %x is %q, %v", level, slot, digits, ok)
		}
		bits := make([]byte, fanout/8)
		bits[len(bits)-1-slot/8] = 1 << (slot % 8)
		top = put(s, join(pbLink(top, digits), shardMsg(bits, 0x22, fanout)))
	}
	if _, ok := unixfs.Slot(name, 40, fanout); ok {
		t.Error("there is a level 40")
	}
	load := s.counting(&loads)
	wantErr(t, unixfs.ErrMalformed, func() error { _, err := unixfs.Find(t.Context(), load, top, name); return err })
	wantErr(t, unixfs.ErrMalformed, func() (err error) {
		for _, err = range unixfs.List(t.Context(), load, top) {
		}
		return err
	})
	if loads > 100 {
		t.Errorf("%d loads", loads)
	}
}

// FuzzDecodeNode: what DecodeNode takes, boxo takes too and reads the same links
// from; and it never costs more than a small multiple of the block.
func FuzzDecodeNode(f *testing.F) {
	for _, b := range seedBlocks(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, block []byte) {
		n, err := unixfs.DecodeNode(cid.NewCidV1(cid.DagProtobuf, mustSum(nil)), block)
		if err != nil {
			if !errors.Is(err, unixfs.ErrMalformed) {
				t.Errorf("other error: %v", err)
			}
			return
		}
		nd, err := dag.DecodeProtobuf(block)
		if err != nil {
			t.Fatalf("boxo: %v", err)
		}
		if len(nd.Links()) != len(n.Links) {
			t.Fatalf("%d links, boxo has %d", len(n.Links), len(nd.Links()))
		}
		for i, l := range nd.Links() {
			if (unixfs.Link{Name: l.Name, Cid: l.Cid, Tsize: l.Size}) != n.Links[i] {
				t.Fatalf("link %d: %+v, boxo has %+v", i, n.Links[i], l)
			}
		}
		for range n.Entries() {
		}
	})
}

// FuzzBases edits, lists and searches on top of arbitrary blocks, all links of
// which lead to the other block: no panic, no endless walk, and what an edit
// emits can be decoded.
func FuzzBases(f *testing.F) {
	seeds := seedBlocks(f)
	for i, b := range seeds {
		f.Add(b, seeds[(i+1)%len(seeds)], uint64(len(b)*3))
		f.Add(b, b, uint64(5))
	}
	f.Fuzz(func(t *testing.T, block, other []byte, size uint64) {
		c := cid.NewCidV1(cid.DagProtobuf, mustSum(block))
		loads := 0
		load := func(_ context.Context, want cid.Cid) ([]byte, error) {
			if loads++; loads > 2000 {
				return nil, errors.New("too many loads")
			}
			if want == c {
				return block, nil
			}
			return other, nil
		}
		emit := func(b unixfs.Block) error {
			_, err := unixfs.DecodeNode(b.Cid, b.Data)
			if err != nil {
				t.Fatalf("emitted a node that does not decode: %v", err)
			}
			return nil
		}
		p := unixfs.V1_2025
		p.ChunkSize, p.MaxLinks, p.Fanout, p.DirLimit = 4, 3, 8, 300
		for _, p.RawLeaves = range []bool{true, false} {
			leaf, err := p.Leaf([]byte("abcd"))
			if err != nil {
				t.Fatal(err)
			}
			list := []unixfs.Run{{First: 1, Count: 1, Leaf: unixfs.LeafRoot(leaf, 4)}}
			loads = 0
			p.EditFile(t.Context(), load, c, 8+size%4096, runs(list), emit)
			if loads > 50 {
				t.Fatalf("%d loads to edit a file", loads)
			}
		}
		loads = 0
		changes := []unixfs.Change{{Name: "1", Set: true, Entry: unixfs.Entry{Cid: someCid}}, {Name: "2"}, {Name: "a"}}
		p.EditDir(t.Context(), load, c, changes, emit)
		unixfs.Find(t.Context(), load, c, "1")
		entries := 0
		for _, err := range unixfs.List(t.Context(), load, c) {
			if err == nil {
				entries++
			}
		}
		if loads > 100+25*(entries+1) {
			t.Fatalf("%d loads for %d entries", loads, entries)
		}
	})
}

// seedBlocks are nodes of every type.
func seedBlocks(t testing.TB) (all [][]byte) {
	p := unixfs.V1_2025
	p.ChunkSize, p.MaxLinks, p.Fanout, p.DirLimit = 4, 3, 8, 300
	keep := func(b unixfs.Block) error {
		if b.Cid.Type() == cid.DagProtobuf {
			all = append(all, bytes.Clone(b.Data))
		}
		return nil
	}
	for _, p.RawLeaves = range []bool{true, false} {
		if _, err := p.BuildFile(t.Context(), strings.NewReader("some bytes, in several leaves of a file"), keep); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []int{0, 3, 12} {
		if _, err := p.BuildDir(t.Context(), numbered(t, p, n), keep); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Symlink("target", keep); err != nil {
		t.Fatal(err)
	}
	all = append(all,
		unixMsg(field(0x08, 3), blob(0x12, blob(0x0a, []byte("text/plain")))),
		join(pbLink(someCid, ""), unixMsg(field(0x08, 0), blob(0x22, []byte{4}), field(0x38, 0o644), blob(0x42, []byte{8, 1, 0x15, 1, 0, 0, 0}))))
	return all
}
