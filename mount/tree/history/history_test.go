package history

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys/linktest"
	"cafs/linksys/unixfs"
	"cafs/mount/tree/index"
)

// memory is a block store.
type memory map[string][]byte

func (m memory) put(b unixfs.Block) error {
	m[b.Cid.KeyString()] = slices.Clone(b.Data)
	return nil
}

func (m memory) load(_ context.Context, c cid.Cid) ([]byte, error) {
	b, ok := m[c.KeyString()]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return b, nil
}

func someCid(t *testing.T, m memory, s string) cid.Cid {
	c, err := xattrBlock([]byte(s), m.put)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestEntry takes entries with every field through their encoding.
func TestEntry(t *testing.T) {
	m := memory{}
	c := someCid(t, m, "x")
	stamp := func(n int64) index.Timespec { return index.Timespec{Sec: n, Nsec: uint32(n & 0xffff)} }
	entries := []Entry{
		{Name: "a\xff\n", Link: LinkID{1, 15: 2}},
		{Name: "b", Kind: index.Fifo},
		{Name: "c", Kind: index.File, Perm: 0o7777, Uid: 1<<32 - 1, Gid: 7, Atime: stamp(-5), Mtime: stamp(1 << 40), Ctime: stamp(3), Btime: stamp(4),
			Cid: c, Size: 1 << 60, Data: 5, Tsize: 99, Nlink: 3, Xattrs: []Xattr{{Name: "user.\xfe", Value: []byte{0}}, {Name: "z", Block: c}}},
		{Name: "d", Kind: index.Dir, Cid: c, Record: c, Hard: 12},
		{Name: "e", Kind: index.Symlink, Cid: c, Target: "../\xff"},
		{Name: "f", Kind: index.BlockDev, Rdev: 0x801},
	}
	s, err := edit(t.Context(), m.load, cid.Undef, changesOf(entries), m.put)
	if err != nil {
		t.Fatal(err)
	}
	if s.hard != 13 {
		t.Errorf("%d names are link ids", s.hard)
	}
	var got []Entry
	for e, err := range List(t.Context(), m.load, s.c) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	for i := range entries {
		entries[i].Data = got[i].Data // equal to Size where it says nothing
		if !reflect.DeepEqual(got[i], entries[i]) {
			t.Errorf("got\n%+v, want\n%+v", got[i], entries[i])
		}
	}
}

func changesOf(entries []Entry) (all []Change) {
	for i := range entries {
		all = append(all, Change{entries[i].Name, &entries[i]})
	}
	return all
}

// TestMap changes maps at random. Each must be the one built from its entries,
// and have just these.
func TestMap(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	m := memory{}
	want := map[string]Entry{}
	base := cid.Undef
	for round := range 30 {
		var changes []Change
		grow := round/10%2 == 0
		for range 1 + rng.IntN(200) {
			name := fmt.Sprint("n", rng.IntN(3000))
			if _, ok := want[name]; ok && !grow {
				delete(want, name)
				changes = append(changes, Change{Name: name})
				continue
			}
			e := Entry{Name: name, Kind: index.Symlink, Target: strings.Repeat("t", rng.IntN(60)), Hard: 0}
			if rng.IntN(20) == 0 {
				e = Entry{Name: name, Link: LinkID{byte(rng.IntN(256)), 1}}
			}
			want[name] = e
			changes = append(changes, Change{name, &e})
		}
		changes = lastOf(changes)
		s, err := edit(t.Context(), m.load, base, changes, m.put)
		if err != nil {
			t.Fatal(err)
		}
		base = s.c
		all := slices.SortedFunc(maps.Values(want), byName)
		built, err := edit(t.Context(), m.load, cid.Undef, changesOf(all), m.put)
		if err != nil || built != s {
			t.Fatalf("round %d: edited %+v, built %+v, %v", round, s, built, err)
		}
		for range 20 {
			name := fmt.Sprint("n", rng.IntN(3000))
			e, ok, err := Find(t.Context(), m.load, base, name)
			if w, is := want[name]; err != nil || ok != is || ok && e.Target != w.Target {
				t.Fatalf("round %d: %q is %+v, %v, %v", round, name, e, ok, err)
			}
		}
	}
}

// TestMapCollision: names of one hash do not end up in one block, and changing
// some costs the blocks above them.
func TestMapCollision(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	m := memory{}
	var all []Entry
	for _, name := range linktest.Colliding(rand.New(rand.NewPCG(seed, 1)), 20_000) {
		all = append(all, Entry{Name: name, Kind: index.Fifo})
	}
	slices.SortFunc(all, byName)
	whole, err := edit(t.Context(), m.load, cid.Undef, changesOf(all), m.put)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range m {
		if len(b) > 2*leafLimit {
			t.Errorf("a block of %d bytes", len(b))
		}
	}
	most, err := edit(t.Context(), m.load, cid.Undef, changesOf(all[1:]), m.put)
	if err != nil {
		t.Fatal(err)
	}
	puts := 0
	put := func(b unixfs.Block) error { puts++; return m.put(b) }
	if got, err := edit(t.Context(), m.load, most.c, changesOf(all[:1]), put); err != nil || got != whole {
		t.Errorf("one added: %+v, %v; want %+v", got, err, whole)
	}
	if got, err := edit(t.Context(), m.load, whole.c, []Change{{Name: all[0].Name}}, put); err != nil || got != most {
		t.Errorf("one removed: %+v, %v; want %+v", got, err, most)
	}
	if puts > 2*64 {
		t.Errorf("two changes wrote %d blocks", puts)
	}
	for _, i := range []int{0, len(all) / 2, len(all) - 1} {
		if _, ok, err := Find(t.Context(), m.load, whole.c, all[i].Name); !ok || err != nil {
			t.Errorf("%q: %v, %v", all[i].Name, ok, err)
		}
	}
	listed := 0
	for _, err := range List(t.Context(), m.load, whole.c) {
		if listed++; err != nil {
			t.Fatal(err)
		}
	}
	if listed != len(all) {
		t.Errorf("%d of %d entries", listed, len(all))
	}
}

// lastOf keeps the last change of each name.
func lastOf(changes []Change) (out []Change) {
	for i, c := range changes {
		if !slices.ContainsFunc(changes[i+1:], func(d Change) bool { return d.Name == c.Name }) {
			out = append(out, c)
		}
	}
	return out
}

// TestCommit takes a commit through its encoding, whose bytes are pinned.
func TestCommit(t *testing.T) {
	m := memory{}
	root := someCid(t, m, "root")
	c := Commit{Root: Entry{Kind: index.Dir, Perm: 0o755, Cid: root, Record: root}, Links: root, Parents: []cid.Cid{root},
		Time: time.Unix(1_700_000_000, 5), Reason: "snapshot", Message: "m\xff"}
	k, err := c.Encode(m.put)
	if err != nil {
		t.Fatal(err)
	}
	const golden = "bafyreihzzoddezx6xgatkmvplz4dvaujnrn232jlo2fdkiiqp5spipacoe"
	if k.String() != golden {
		t.Errorf("the commit is %s, was %s when the format was fixed", k, golden)
	}
	got, err := Decode(m[k.KeyString()])
	if err != nil || !got.Time.Equal(c.Time) {
		t.Fatalf("%+v, %v", got, err)
	}
	if got.Time = c.Time; !reflect.DeepEqual(got, c) {
		t.Errorf("got\n%+v, want\n%+v", got, c)
	}
	if _, err := Decode([]byte("\xa1gversion\x02")); !errors.Is(err, ErrVersion) && !errors.Is(err, ErrFormat) {
		t.Errorf("version 2: %v", err)
	}
}

// FuzzDecode feeds the decoders with bytes from elsewhere.
func FuzzDecode(f *testing.F) {
	m := memory{}
	e := Entry{Name: "x", Kind: index.File, Size: 1}
	value := Entry{Name: "y", Kind: index.File, Xattrs: []Xattr{{Name: "user.a", Block: cid.NewCidV1(cid.Raw, mh.Multihash("\x12\x20aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"))}}}
	many := []Entry{value}
	for i := range 500 {
		many = append(many, Entry{Name: fmt.Sprint(i), Kind: index.File})
	}
	for _, entries := range [][]Entry{{e}, {e, value}, many} {
		if _, err := edit(context.Background(), m.load, cid.Undef, changesOf(entries), m.put); err != nil {
			f.Fatal(err)
		}
	}
	for _, b := range m {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := Decode(b); err == nil {
			return
		}
		decodeNode(b)
		var own, found []cid.Cid
		err := Refs(b, func(c cid.Cid, mine bool) error {
			if mine {
				own = append(own, c)
			}
			return nil
		})
		if err != nil {
			return
		}
		if err := OwnRefs(b, func(c cid.Cid) error { found = append(found, c); return nil }); err != nil || !slices.Equal(own, found) {
			t.Errorf("%x: own links %v, %v; want %v", b, found, err, own)
		}
	})
}
