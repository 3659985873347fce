package index

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"

	"cafs/store/disk"

	"github.com/ipfs/go-cid"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// examples commits one record of every type, and of every form a type has.
func examples(t *testing.T, db *DB) {
	c, err := cid.Decode("bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku")
	if err != nil {
		t.Fatal(err)
	}
	t0 := Timespec{Sec: 1_700_000_000, Nsec: 123_456_789}
	b := db.NewBatch()
	defer b.Close()
	b.SetInode(1, &Inode{Kind: Dir, Perm: 0o1777, Nlink: 3, Mtime: t0, Atime: t0, Ctime: t0, Btime: t0,
		Parent: 1, Next: 1000, Unsealed: true})
	b.SetInode(2, &Inode{Kind: File, Perm: 0o644, Uid: 1000, Gid: 100, Nlink: 2, Mtime: t0,
		Atime: Timespec{Sec: -1, Nsec: 999_999_999}, Ctime: Timespec{Sec: 1 << 40}, Btime: t0, Parent: 1, Cookie: 300,
		Content: Content{Base: c, BaseSize: 1 << 30, BaseData: 1 << 29, Size: 1 << 31, Visible: []Range{{0, 4096}, {8192, 1 << 29}}},
		Tsize:   1<<30 + 77, LinkID: [16]byte{1, 2, 3, 15: 16}, Alloc: 1 << 20, Xattrs: 2})
	b.SetInode(3, &Inode{Kind: Symlink, Perm: 0o777, Nlink: 1, Target: "../a", Content: Content{Size: 4, BaseSize: 4}})
	b.SetInode(1<<63-1, &Inode{Kind: CharDev, Rdev: 0x103, Nlink: 1})
	b.SetInode(4, &Inode{Kind: Dir, Perm: 0o755, Nlink: 2, Parent: 1, Cookie: 5, Content: Content{Base: c}, Record: c, Lazy: true})
	b.SetUnrecorded(1, "stale")
	b.SetLinkUnrecorded([16]byte{1, 2, 3, 15: 16}, 2)
	b.SetDirent(1, Dirent{Name: "näme\n", Ino: 2, Kind: File, Cookie: 300})
	b.SetBackref(2, 1, 300)
	b.SetExtent(2, Extent{Off: 0, Len: 5, Kind: Inline, Data: []byte("hello")})
	b.SetExtent(2, Extent{Off: 5, Len: 1 << 20, Kind: Staged, Seg: 7, Pos: 1 << 33, CRC: 0xdeadbeef, Skip: 9})
	b.SetExtent(2, Extent{Off: 1 << 21, Len: 1 << 20, Kind: Block, Block: c, Skip: 512})
	b.SetExtent(2, Extent{Off: 1 << 22, Len: 1 << 62, Kind: Hole})
	b.SetChanged(1, "gone")
	b.SetXattr(2, "user.empty", nil)
	b.SetXattr(2, "user.x", []byte{0, 1, 255})
	b.AddOrphan(9)
	b.AddSegment(7, 1<<20)
	b.AddSegment(7, -1)
	b.AddSegment(8, -5)
	b.SetRef("snapshot/a", []byte("value"))
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := db.SavePages(c.Hash(), []uint32{1, 0xffffffff}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ReserveInos(1024); err != nil {
		t.Fatal(err)
	}
}

// TestGolden pins the bytes of keys and values: they are a format on disk.
func TestGolden(t *testing.T) {
	db, err := Open(disk.NewMem(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	examples(t, db)
	lines, err := db.Dump()
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	const path = "testdata/records.txt"
	got := strings.Join(lines, "\n") + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("records changed; now\n%s", got)
	}
}

// TestPages also checks that page checksums come back and can be forgotten.
func TestPages(t *testing.T) {
	db, err := Open(disk.NewMem(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := []byte("\x12\x02ab")
	for _, want := range [][]uint32{{}, {5}, {1, 1 << 31, 3}} {
		if err := db.SavePages(h, want); err != nil {
			t.Fatal(err)
		}
		got, ok, err := db.LoadPages(h)
		if !ok || err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v, %v, %v; want %v", got, ok, err, want)
		}
	}
	if err := db.DeletePages(h); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := db.LoadPages(h); ok || err != nil {
		t.Errorf("%v, %v, %v after deletion", got, ok, err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// FuzzDecode feeds the decoders with bytes from a damaged disk. They must not
// panic, and what they accept must survive encoding and decoding.
func FuzzDecode(f *testing.F) {
	text, err := os.ReadFile("testdata/records.txt")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		_, value, _ := strings.Cut(strings.TrimSpace(line), " = ")
		raw, err := hex.DecodeString(value)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte("\x01\x80\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00")) // no visible ranges, but said to have some
	f.Fuzz(func(t *testing.T, b []byte) {
		if in, err := decodeInode(b); err == nil {
			again, err := decodeInode(appendInode(nil, &in))
			same(t, "inode", in, again, err)
		}
		if e, err := decodeExtent(4096, b); err == nil {
			again, err := decodeExtent(4096, appendExtent(nil, &e))
			same(t, "extent", e, again, err)
		}
		if d, err := decodeDirent("n", b); err == nil {
			again, err := decodeDirent("n", appendUvarint(appendEntry(nil, d.Ino, d.Kind), d.Cookie))
			same(t, "dirent", d, again, err)
		}
		if d, err := decodeCookie(4, b); err == nil {
			again, err := decodeCookie(4, append(appendEntry(nil, d.Ino, d.Kind), d.Name...))
			same(t, "cookie", d, again, err)
		}
		if p, err := decodePages(b); err == nil && !bytes.Equal(appendPages(nil, p), b) {
			t.Errorf("pages %v", p)
		}
		if n, err := decodeSigned(b); err == nil {
			again, err := decodeSigned(appendVarint(nil, n))
			same(t, "number", n, again, err)
		}
	})
}

func same(t *testing.T, what string, a, b any, err error) {
	t.Helper()
	if err != nil || !reflect.DeepEqual(a, b) {
		t.Errorf("%s: %+v decodes as %+v, %v", what, a, b, err)
	}
}
