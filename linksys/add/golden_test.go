package add_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ipfs/go-cid"

	"cafs/linksys/add"
	"cafs/linksys/linktest"
	"cafs/linksys/unixfs"
)

// row is a line of cids.tsv: what Kubo 0.44 printed for an input.
type row struct {
	profile, input, options, want string
}

// goldenRows yields the rows whose input begins with a word.
func goldenRows(t *testing.T, kind string, atLeast int, do func(row)) {
	t.Helper()
	f, err := os.Open("../unixfs/testdata/cids.tsv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		col := strings.Split(lines.Text(), "\t")
		if len(col) == 4 && strings.HasPrefix(col[1], kind+" ") {
			n++
			do(row{col[0], col[1], col[2], col[3]})
		}
	}
	if n < atLeast {
		t.Errorf("only %d rows", n)
	}
}

// settings are the import's options, and the mode and mtime the input has.
func (r row) settings(t *testing.T) (o add.Options, mode os.FileMode, mtime time.Time) {
	t.Helper()
	profile := r.profile
	mode = 0o644
	for _, setting := range strings.Split(r.options, ",") {
		switch key, value, _ := strings.Cut(setting, "="); key {
		case "":
		case "hidden":
			o.Hidden = value == "true"
		case "empty-dirs":
			o.NoEmptyDirs = value == "false"
		case "mode":
			n, err := strconv.ParseUint(value, 8, 32)
			if err != nil {
				t.Fatal(err)
			}
			o.PreserveMode, mode = true, os.FileMode(n)
		case "mtime":
			var sec, nsec int64
			if _, err := fmt.Sscanf(value, "%d.%d", &sec, &nsec); err != nil {
				t.Fatal(err)
			}
			o.PreserveMtime, mtime = true, time.Unix(sec, nsec)
		default:
			profile += "," + setting
		}
	}
	var err error
	if o.Profile, err = unixfs.ParseProfile(profile); err != nil {
		t.Fatal(err)
	}
	return o, mode, mtime
}

// nowhere is a store that keeps nothing.
type nowhere struct{}

func (nowhere) Put(context.Context, cid.Cid, []byte) error { return nil }

// TestGoldenFiles adds the files of every row, from streams and, where they have
// a mode or a time, from the disk.
func TestGoldenFiles(t *testing.T) {
	goldenRows(t, "file", 48, func(r row) {
		o, mode, mtime := r.settings(t)
		var in io.Reader
		var seed, n int64
		if _, err := fmt.Sscanf(r.input, "file stream(%d,%d)", &seed, &n); err == nil {
			if testing.Short() && n >= 32<<20 {
				return
			}
			in = io.LimitReader(&words{seed: uint64(seed)}, n)
		} else {
			path := filepath.Join(t.TempDir(), "hello")
			if err := os.WriteFile(path, []byte("hello\n"), mode); err != nil {
				t.Fatal(err)
			}
			if !mtime.IsZero() {
				if err := os.Chtimes(path, mtime, mtime); err != nil {
					t.Fatal(err)
				}
			}
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			in = f
		}
		im := add.New(nowhere{}, o)
		root, err := im.AddFile(t.Context(), in)
		if err != nil || root.Cid.String() != r.want {
			t.Errorf("%+v: %s, %v", r, root.Cid, err)
		}
	})
}

// words is the endless stream of cids.tsv.
type words struct {
	seed uint64
	off  int
}

func (w *words) Read(p []byte) (int, error) {
	var word [8]byte
	for i := 0; i < len(p); {
		binary.BigEndian.PutUint64(word[:], (uint64(w.off/8)+1+w.seed)*0x9E3779B97F4A7C15)
		n := copy(p[i:], word[w.off%8:])
		i, w.off = i+n, w.off+n
	}
	return len(p), nil
}

// TestGoldenTrees adds the trees of every row from the disk.
func TestGoldenTrees(t *testing.T) {
	numbered, made := t.TempDir(), 0
	goldenRows(t, "dir", 30, func(r row) {
		o, _, _ := r.settings(t)
		dir := ""
		var n int
		if _, err := fmt.Sscanf(r.input, "dir numbered(%d)", &n); err == nil {
			if testing.Short() && n > 5000 {
				return
			}
			for ; made > n; made-- { // rows of the next profile begin small again
				if err := os.Remove(filepath.Join(numbered, fmt.Sprintf("file-%06d", made-1))); err != nil {
					t.Fatal(err)
				}
			}
			for ; made < n; made++ {
				write(t, numbered, fmt.Sprintf("file-%06d", made), strconv.Itoa(made))
			}
			dir = numbered
		} else {
			dir = mixed(t)
		}
		root, stats, err := addTree(t, linktest.NewStore(), dir, o)
		if err != nil || root.Cid.String() != r.want {
			t.Errorf("%+v: %s, %v", r, root.Cid, err)
		}
		if dir == numbered && stats.Files != int64(n) {
			t.Errorf("%d files counted, want %d", stats.Files, n)
		}
	})
}
