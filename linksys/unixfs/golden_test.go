package unixfs_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"cafs/linksys/unixfs"

	"github.com/ipfs/go-cid"
)

// longGolden is the input size, in bytes, from which a row only runs without
// -short: those of 1 GiB, and those of a million leaves of 64 bytes.
const longGolden = 64 << 20

// stream is the generator of testdata/cids.tsv: an endless deterministic stream.
type stream struct {
	seed uint64
	off  int64
	n    int64
}

func (s *stream) Read(p []byte) (int, error) {
	if s.off >= s.n {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), s.n-s.off)]
	var word [8]byte
	for i := 0; i < len(p); {
		index := uint64(s.off) / 8
		skip := int(s.off % 8)
		binary.BigEndian.PutUint64(word[:], (index+1+s.seed)*0x9E3779B97F4A7C15)
		n := copy(p[i:], word[skip:])
		i += n
		s.off += int64(n)
	}
	return len(p), nil
}

// TestGolden builds every row of testdata/cids.tsv: CIDs that Kubo 0.44 printed.
func TestGolden(t *testing.T) {
	f, err := os.Open("testdata/cids.tsv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		rows++
		col := strings.Split(lines.Text(), "\t")
		profile, input, options, want := col[0], col[1], col[2], col[3]
		t.Run(strings.Join(col[:3], " "), func(t *testing.T) {
			got, err := golden(t, profile, input, options)
			if err != nil {
				t.Fatal(err)
			}
			if got.Cid.String() != want {
				t.Errorf("got %s, want %s", got.Cid, want)
			}
		})
	}
	if rows < 76 {
		t.Errorf("only %d rows", rows)
	}
}

func golden(t *testing.T, profile, input, options string) (unixfs.Root, error) {
	b := unixfs.Builder{Workers: 2}
	hidden, settings := false, profile
	for _, o := range strings.Split(options, ",") {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "":
		case "hidden":
			hidden = value == "true"
		case "empty-dirs":
		case "mode":
			mode, err := strconv.ParseUint(value, 8, 32)
			if err != nil {
				t.Fatal(err)
			}
			b.Stat.Mode = uint32(mode)
		case "mtime":
			var sec, nsec int64
			if _, err := fmt.Sscanf(value, "%d.%d", &sec, &nsec); err != nil {
				t.Fatal(err)
			}
			b.Stat.Mtime = time.Unix(sec, nsec)
		default:
			settings += "," + o
		}
	}
	var err error
	if b.Profile, err = unixfs.ParseProfile(settings); err != nil {
		return unixfs.Root{}, err
	}
	var seed, n int64
	kind, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(input, "file "), "dir "), "(")
	switch kind {
	case "stream":
		if _, err := fmt.Sscanf(input, "file stream(%d,%d)", &seed, &n); err != nil {
			t.Fatal(err)
		}
		if n >= longGolden && testing.Short() {
			t.Skip("not with -short")
		}
		return b.File(t.Context(), &stream{seed: uint64(seed), n: n}, discard)
	case "numbered":
		if _, err := fmt.Sscanf(input, "dir numbered(%d)", &n); err != nil {
			t.Fatal(err)
		}
		return b.Dir(t.Context(), numbered(t, b.Profile, int(n)), discard)
	case "mixed":
		return mixed(t, b, hidden)
	case "hello":
		return b.File(t.Context(), strings.NewReader("hello\n"), discard)
	}
	return unixfs.Root{}, fmt.Errorf("unknown input %q", input)
}

func discard(unixfs.Block) error { return nil }

func entry(name string, r unixfs.Root) unixfs.Entry {
	return unixfs.Entry{Name: name, Cid: r.Cid, Tsize: r.Tsize}
}

func numbered(t testing.TB, p unixfs.Profile, n int) iter.Seq2[unixfs.Entry, error] {
	return func(yield func(unixfs.Entry, error) bool) {
		for i := n - 1; i >= 0; i-- {
			root, err := p.BuildFile(t.Context(), strings.NewReader(strconv.Itoa(i)), discard)
			if !yield(entry(fmt.Sprintf("file-%06d", i), root), err) {
				return
			}
		}
	}
}

func seq(entries ...unixfs.Entry) iter.Seq2[unixfs.Entry, error] {
	return func(yield func(unixfs.Entry, error) bool) {
		for _, e := range entries {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// mixed is the directory "dir mixed" of cids.tsv.
func mixed(t *testing.T, b unixfs.Builder, hidden bool) (unixfs.Root, error) {
	file := func(name string, r io.Reader) unixfs.Entry {
		root, err := b.File(t.Context(), r, discard)
		if err != nil {
			t.Fatal(err)
		}
		return entry(name, root)
	}
	link := func(name, target string) unixfs.Entry {
		root, err := b.Symlink(target, discard)
		if err != nil {
			t.Fatal(err)
		}
		return entry(name, root)
	}
	dir := func(name string, entries ...unixfs.Entry) unixfs.Entry {
		root, err := b.Dir(t.Context(), seq(entries...), discard)
		if err != nil {
			t.Fatal(err)
		}
		return entry(name, root)
	}
	entries := []unixfs.Entry{
		dir("empty"),
		file("hello.txt", strings.NewReader("hello\n")),
		link("link", "hello.txt"),
		link("dangling", "/no/such/target"),
		dir("sub",
			file("big", &stream{seed: 7, n: 2097153}),
			dir("deep", file("zero", bytes.NewReader(nil))),
			file("a b#c%?\u00e9", strings.NewReader("x"))),
	}
	if hidden {
		entries = append(entries, file(".hidden", strings.NewReader("h")))
	}
	return b.Dir(t.Context(), seq(entries...), discard)
}

// blocks is a store for tests. It verifies, like the real one.
type blocks map[cid.Cid][]byte

func (s blocks) emit(b unixfs.Block) error {
	c, err := b.Cid.Prefix().Sum(b.Data)
	if err != nil {
		return err
	}
	if c != b.Cid {
		return fmt.Errorf("emitted %s, but the bytes are %s", b.Cid, c)
	}
	s[b.Cid] = bytes.Clone(b.Data)
	return nil
}

func (s blocks) load(_ context.Context, c cid.Cid) ([]byte, error) {
	b, ok := s[c]
	if !ok {
		return nil, fmt.Errorf("no block %s", c)
	}
	return b, nil
}
