package main

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys"
	"cafs/linksys/unixfs"
	"cafs/store"
)

// evil is a store of nodes that no builder would make.
type evil struct {
	t   *testing.T
	mem *store.Mem
}

func (e evil) put(codec uint64, b []byte) cid.Cid {
	e.t.Helper()
	sum, err := mh.Sum(b, mh.SHA2_256, -1)
	if err != nil {
		e.t.Fatal(err)
	}
	c := cid.NewCidV1(codec, sum)
	if err := e.mem.Put(context.Background(), c, b); err != nil {
		e.t.Fatal(err)
	}
	return c
}

func field(b []byte, tag byte, v []byte) []byte {
	return append(binary.AppendUvarint(append(b, tag), uint64(len(v))), v...)
}

type link struct {
	name string
	c    cid.Cid
}

// dir is a directory node with these links, as they are.
func (e evil) dir(links ...link) cid.Cid {
	var node []byte
	for _, l := range links {
		pb := field(nil, 0x0a, l.c.Bytes())
		pb = field(pb, 0x12, []byte(l.name))
		node = field(node, 0x12, append(pb, 0x18, 1))
	}
	return e.put(cid.DagProtobuf, field(node, 0x0a, []byte{0x08, 0x01}))
}

func (e evil) symlink(target string) cid.Cid {
	return e.put(cid.DagProtobuf, field(nil, 0x0a, field([]byte{0x08, 0x04}, 0x12, []byte(target))))
}

// TestGetStaysInside: whatever the content holds, get makes nothing outside of
// its folder, follows no link, and replaces nothing.
func TestGetStaysInside(t *testing.T) {
	ctx, base := context.Background(), t.TempDir()
	outside := filepath.Join(base, "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	e := evil{t, store.NewMem()}
	s := &session{blocks: e.mem, sys: linksys.New(e.mem, linksys.Options{})}
	file := e.put(cid.Raw, []byte("pwned"))
	suid := e.put(cid.DagProtobuf, field(nil, 0x0a, append([]byte{0x08, 0x02, 0x12, 1, 'x', 0x18, 1, 0x38}, binary.AppendUvarint(nil, 0o6711)...)))
	inner := e.dir(link{"pwned", file}, link{"..", e.dir(link{"pwned", file})})
	root := e.dir(
		link{"good", file}, link{"..", inner}, link{".", inner}, link{"../pwned", file}, link{"/pwned", file},
		link{"a/b", file}, link{"", file}, link{"nul\x00", file}, link{"escape", e.symlink(outside)}, link{"escape", inner},
		link{"up", e.symlink("..")}, link{"sub", inner}, link{"suid", suid}, link{strings.Repeat("n", 256), file},
	)
	parent, err := os.OpenRoot(base)
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	x := &extraction{s: s, bar: &bar{}, slots: make(chan struct{}, getWorkers)}
	err = x.entry(ctx, parent, "out", root)
	t.Log(err)
	var got []string
	filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(base, path)
		got = append(got, rel)
		return err
	})
	for _, path := range got {
		if path != "." && path != "outside" && path != "out" && !strings.HasPrefix(path, "out/") {
			t.Errorf("made %s", path)
		}
	}
	for _, want := range []string{"out/good", "out/sub/pwned", "out/escape", "out/up", "out/suid"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing from %q", want, got)
		}
	}
	if info, err := os.Stat(filepath.Join(base, "out", "suid")); err != nil || info.Mode() != 0o711 {
		t.Errorf("set-user-ID file: %v, %v", info.Mode(), err)
	}
	if err := x.entry(ctx, parent, "out", root); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over what is there: %v", err)
	}
}

// TestGetSparse: holes stay holes, and every byte is where it was.
func TestGetSparse(t *testing.T) {
	ctx, base := context.Background(), t.TempDir()
	mem := store.NewMem()
	s := &session{blocks: mem, sys: linksys.New(mem, linksys.Options{})}
	want := make([]byte, 5<<20+123)
	copy(want[2<<20:], "in the middle")
	want[len(want)-1] = 'x'
	for name, content := range map[string][]byte{"sparse": want, "zeros": make([]byte, 3<<20), "empty": nil, "odd": want[2<<20 : 3<<20+1]} {
		root, err := unixfs.V1_2025.BuildFile(ctx, strings.NewReader(string(content)), func(b unixfs.Block) error { return mem.Put(ctx, b.Cid, b.Data) })
		if err != nil {
			t.Fatal(err)
		}
		parent, err := os.OpenRoot(base)
		if err != nil {
			t.Fatal(err)
		}
		defer parent.Close()
		x := &extraction{s: s, bar: &bar{}, slots: make(chan struct{}, getWorkers)}
		if err := x.entry(ctx, parent, name, root.Cid); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(filepath.Join(base, name)); err != nil || string(got) != string(content) {
			t.Errorf("%s: %d bytes of %d, or others; %v", name, len(got), len(content), err)
		}
	}
}
