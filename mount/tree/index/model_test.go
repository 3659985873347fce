package index_test

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"cafs/mount/tree/index"
	"cafs/store/disk"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
)

// model is what an index should hold: a text for each record, by a text for
// its key.
type model map[string]string

// readers is what DB and Snapshot have in common.
type readers interface {
	Inode(index.Ino) (index.Inode, error)
	Inodes(index.Ino) iter.Seq2[index.InodeAt, error]
	Dirent(index.Ino, string) (index.Dirent, error)
	DirentAt(index.Ino, uint64) (index.Dirent, error)
	Dirents(index.Ino, uint64) iter.Seq2[index.Dirent, error]
	Extents(index.Ino) iter.Seq2[index.Extent, error]
	Backrefs(index.Ino) iter.Seq2[index.Backref, error]
	Changed(index.Ino) iter.Seq2[string, error]
	Xattr(index.Ino, string) ([]byte, error)
	Xattrs(index.Ino) iter.Seq2[index.Xattr, error]
	Orphans() iter.Seq2[index.Ino, error]
	Segments() iter.Seq2[index.Segment, error]
	Ref(string) ([]byte, error)
	Refs(string) iter.Seq2[index.Ref, error]
}

const (
	inos  = 6
	names = "abcde"
)

// dump reads everything there can be, through every reader.
func dump(t *testing.T, r readers) model {
	t.Helper()
	m := model{}
	check := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	for in, err := range r.Inodes(0) {
		check(err)
		one, err := r.Inode(in.Ino)
		check(err)
		if !reflect.DeepEqual(one, in.Inode) {
			t.Fatalf("inode %d: %+v and %+v", in.Ino, one, in.Inode)
		}
		m.inode(in.Ino, &in.Inode)
	}
	for ino := index.Ino(1); ino <= inos; ino++ {
		for d, err := range r.Dirents(ino, 0) {
			check(err)
			byName, err := r.Dirent(ino, d.Name)
			check(err)
			byCookie, err := r.DirentAt(ino, d.Cookie)
			check(err)
			if d != byName || d != byCookie {
				t.Fatalf("dirent of %d: %+v, %+v, %+v", ino, d, byName, byCookie)
			}
			m.dirent(ino, d)
		}
		for e, err := range r.Extents(ino) {
			check(err)
			m.extent(ino, e)
		}
		for b, err := range r.Backrefs(ino) {
			check(err)
			m[fmt.Sprintf("backref %d %d %d", ino, b.Parent, b.Cookie)] = ""
		}
		for name, err := range r.Changed(ino) {
			check(err)
			m[fmt.Sprintf("changed %d %s", ino, name)] = ""
		}
		for x, err := range r.Xattrs(ino) {
			check(err)
			v, err := r.Xattr(ino, x.Name)
			check(err)
			if string(v) != string(x.Value) {
				t.Fatalf("xattr %d %s: %q and %q", ino, x.Name, v, x.Value)
			}
			m[fmt.Sprintf("xattr %d %s", ino, x.Name)] = string(x.Value)
		}
	}
	for ino, err := range r.Orphans() {
		check(err)
		m[fmt.Sprintf("orphan %d", ino)] = ""
	}
	for s, err := range r.Segments() {
		check(err)
		m[fmt.Sprintf("segment %d", s.ID)] = fmt.Sprint(s.Live)
	}
	for ref, err := range r.Refs("") {
		check(err)
		v, err := r.Ref(ref.Name)
		check(err)
		if string(v) != string(ref.Value) {
			t.Fatalf("ref %s: %q and %q", ref.Name, v, ref.Value)
		}
		m["ref "+ref.Name] = string(ref.Value)
	}
	return m
}

func (m model) inode(ino index.Ino, in *index.Inode) {
	m[fmt.Sprintf("inode %d", ino)] = fmt.Sprintf("%+v", *in)
}

func (m model) dirent(dir index.Ino, d index.Dirent) {
	m[fmt.Sprintf("dirent %d %s", dir, d.Name)] = fmt.Sprintf("%+v", d)
}

func (m model) extent(ino index.Ino, e index.Extent) {
	m[fmt.Sprintf("extent %d %d", ino, e.Off)] = fmt.Sprintf("%+v", e)
}

func (m model) drop(prefix string) {
	maps.DeleteFunc(m, func(k, _ string) bool { return len(k) >= len(prefix) && k[:len(prefix)] == prefix })
}

// change applies a few random changes to the model and the batch alike.
func (m model) change(rng *rand.Rand, b *index.Batch) {
	for range 1 + rng.IntN(6) {
		ino := index.Ino(1 + rng.IntN(inos))
		name := string(names[rng.IntN(len(names))])
		switch rng.IntN(20) {
		case 0, 1, 2:
			in := randomInode(rng)
			b.SetInode(ino, &in)
			m.inode(ino, &in)
		case 3:
			b.DeleteInode(ino)
			delete(m, fmt.Sprintf("inode %d", ino))
		case 4, 5, 6: // the cookie is a function of the name, so none has two
			d := index.Dirent{Name: name, Ino: ino, Kind: index.Dir, Cookie: uint64(name[0])}
			b.SetDirent(ino, d)
			m.dirent(ino, d)
		case 7:
			b.DeleteDirent(ino, index.Dirent{Name: name, Cookie: uint64(name[0])})
			delete(m, fmt.Sprintf("dirent %d %s", ino, name))
		case 8:
			b.SetBackref(ino, ino+1, uint64(name[0]))
			m[fmt.Sprintf("backref %d %d %d", ino, ino+1, name[0])] = ""
		case 9:
			b.DeleteBackref(ino, ino+1, uint64(name[0]))
			delete(m, fmt.Sprintf("backref %d %d %d", ino, ino+1, name[0]))
		case 10, 11:
			e := randomExtent(rng)
			b.SetExtent(ino, e)
			m.extent(ino, e)
		case 12:
			off := int64(rng.IntN(4)) << 20
			b.DeleteExtent(ino, off)
			delete(m, fmt.Sprintf("extent %d %d", ino, off))
		case 13:
			b.DeleteExtents(ino)
			m.drop(fmt.Sprintf("extent %d ", ino))
		case 14:
			b.SetChanged(ino, name)
			m[fmt.Sprintf("changed %d %s", ino, name)] = ""
		case 15:
			if rng.IntN(2) == 0 {
				b.ClearChanged(ino, name, "absent")
				delete(m, fmt.Sprintf("changed %d %s", ino, name))
			} else {
				b.ClearAllChanged(ino)
				m.drop(fmt.Sprintf("changed %d ", ino))
			}
		case 16:
			v := make([]byte, rng.IntN(9000))
			b.SetXattr(ino, name, v)
			m[fmt.Sprintf("xattr %d %s", ino, name)] = string(v)
		case 17:
			if rng.IntN(2) == 0 {
				b.DeleteXattr(ino, name)
				delete(m, fmt.Sprintf("xattr %d %s", ino, name))
			} else {
				b.DeleteXattrs(ino)
				m.drop(fmt.Sprintf("xattr %d ", ino))
			}
		case 18:
			m.changeOther(rng, b, ino, name)
		case 19:
			seg, delta := uint64(rng.IntN(3)), rng.Int64N(2000)-1000
			key := fmt.Sprintf("segment %d", seg)
			if rng.IntN(4) == 0 {
				b.DeleteSegment(seg)
				delete(m, key)
				continue
			}
			b.AddSegment(seg, delta)
			var live int64
			_, _ = fmt.Sscan(m[key], &live) // 0 when there is none
			m[key] = fmt.Sprint(live + delta)
		}
	}
}

func (m model) changeOther(rng *rand.Rand, b *index.Batch, ino index.Ino, name string) {
	switch rng.IntN(4) {
	case 0:
		b.AddOrphan(ino)
		m[fmt.Sprintf("orphan %d", ino)] = ""
	case 1:
		b.DeleteOrphan(ino)
		delete(m, fmt.Sprintf("orphan %d", ino))
	case 2:
		v := fmt.Sprint(rng.Uint64())
		b.SetRef(name, []byte(v))
		m["ref "+name] = v
	case 3:
		b.DeleteRef(name)
		delete(m, "ref "+name)
	}
}

func randomCid(rng *rand.Rand) cid.Cid {
	sum, err := mh.Sum([]byte{byte(rng.Uint32())}, mh.SHA2_256, -1)
	if err != nil {
		panic(err) // sha2-256 is always there
	}
	return cid.NewCidV1(cid.Raw, sum)
}

func randomTime(rng *rand.Rand) index.Timespec {
	return index.Timespec{Sec: rng.Int64N(1<<40) - 1<<39, Nsec: rng.Uint32N(1e9)}
}

func randomInode(rng *rand.Rand) index.Inode {
	in := index.Inode{
		Kind: index.Kind(1 + rng.IntN(7)), Perm: uint16(rng.IntN(0o10000)),
		Uid: rng.Uint32(), Gid: rng.Uint32(), Nlink: rng.Uint32(),
		Mtime: randomTime(rng), Parent: index.Ino(rng.Uint64() >> 1), Cookie: rng.Uint64(),
	}
	in.Atime, in.Ctime, in.Btime = in.Mtime, in.Mtime, in.Mtime
	maybe := func(f func()) {
		if rng.IntN(3) == 0 {
			f()
		}
	}
	maybe(func() { in.Atime = randomTime(rng) })
	maybe(func() { in.Ctime, in.Btime = randomTime(rng), randomTime(rng) })
	maybe(func() { in.Base, in.BaseSize, in.Tsize = randomCid(rng), rng.Int64(), rng.Uint64() })
	maybe(func() { in.BaseData, in.Alloc, in.Xattrs = rng.Int64(), rng.Int64(), rng.Uint32() })
	maybe(func() { in.Size = rng.Int64() })
	maybe(func() { in.Visible = []index.Range{{Off: 0, Len: 5}, {Off: 9, Len: rng.Int64() >> 1}} })
	maybe(func() { in.Target = "../target" })
	maybe(func() { in.Rdev, in.Next, in.Unsealed, in.LinkID[3] = rng.Uint32(), rng.Uint64(), true, 1 })
	return in
}

func randomExtent(rng *rand.Rand) index.Extent {
	e := index.Extent{Off: int64(rng.IntN(4)) << 20, Len: 1 + rng.Int64N(1<<20), Kind: index.ExtentKind(1 + rng.IntN(4))}
	switch e.Kind {
	case index.Inline:
		e.Data = slices.Repeat([]byte{7}, 1+rng.IntN(5000))
		e.Len = int64(len(e.Data))
	case index.Staged:
		e.Seg, e.Pos, e.CRC, e.Skip = rng.Uint64(), rng.Int64(), rng.Uint32(), rng.Int64N(1<<20)
	case index.Block:
		e.Block, e.Skip = randomCid(rng), rng.Int64N(1<<20)
	}
	return e
}

func diff(t *testing.T, got, want model) {
	t.Helper()
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if g, ok := got[k]; !ok || g != want[k] {
			t.Errorf("%s is %.200q (there: %v), want %.200q", k, g, ok, want[k])
		}
	}
	for k := range got {
		if _, ok := want[k]; !ok {
			t.Errorf("%s is there", k)
		}
	}
}

// TestModel compares the index with a map after each batch, before and after
// reopening, and checks that a snapshot stays as it was.
func TestModel(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		mem := disk.NewMem()
		db := open(t, mem)
		want := model{}
		for range 4 {
			snap, then := db.Snapshot(), maps.Clone(want)
			for range 20 {
				b := db.NewBatch()
				want.change(rng, b)
				if err := b.Commit(); err != nil {
					t.Fatal(err)
				}
				b.Close()
				diff(t, dump(t, db), want)
			}
			diff(t, dump(t, snap), then)
			snap.Close()
			switch rng.IntN(3) {
			case 0:
				if err := db.Compact(); err != nil {
					t.Fatal(err)
				}
			case 1:
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
				db = open(t, mem)
			}
			diff(t, dump(t, db), want)
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		for _, look := range []func() error{
			func() error { _, err := db.Inode(99); return err },
			func() error { _, err := db.Dirent(1, "absent"); return err },
			func() error { _, err := db.DirentAt(1, 1); return err },
			func() error { _, err := db.Xattr(1, "absent"); return err },
			func() error { _, err := db.Ref("absent"); return err },
		} {
			if err := look(); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("look-up of an absent record: %v", err)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func open(t *testing.T, fsys disk.FS) *index.DB {
	t.Helper()
	db, err := index.Open(fsys, index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return db
}
