package verify_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipfs/go-cid"
	dagpb "github.com/ipld/go-codec-dagpb"
	mh "github.com/multiformats/go-multihash"

	"cafs/mount/repo"
	"cafs/mount/tree"
	"cafs/mount/tree/index"
	"cafs/mount/verify"
	"cafs/store/disk"
)

// profile makes blocks of every kind of little content.
const profile = "unixfs-v1-2025,chunker=size-4096,max-links=4,fanout=8,dir-limit=600"

// opened is an open repository with its tree.
type opened struct {
	*repo.Repo
	tree *tree.Tree
}

func open(t *testing.T, path string) *opened {
	t.Helper()
	r, err := repo.Open(t.Context(), path, repo.Options{Create: &repo.Config{Profile: profile}})
	must(t, err)
	tr, _, err := r.OpenTree(t.Context(), repo.TreeOptions{CommitInterval: time.Hour})
	must(t, err)
	return &opened{r, tr}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run verifies, with a quarantine if repair is set, and returns what is wrong.
func (o *opened) run(t *testing.T, opts verify.Options, repair bool) ([]verify.Finding, verify.Report, error) {
	t.Helper()
	var all []verify.Finding
	opts.Tree, opts.DB, opts.Store, opts.State = o.tree, o.DB, o.Store, filepath.Join(o.Path, "verify")
	opts.Found = func(f verify.Finding) error { all = append(all, f); return nil }
	opts.Pins = func() iter.Seq2[verify.Pin, error] { return func(func(verify.Pin, error) bool) {} }
	if repair {
		if err := os.Mkdir(filepath.Join(o.Path, "quarantine"), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		q, err := disk.OS(filepath.Join(o.Path, "quarantine"))
		must(t, err)
		defer q.Close()
		opts.Quarantine = q
	}
	r, err := verify.Run(t.Context(), opts)
	return all, r, err
}

// sample is a sound repository with files, directories and a commit, and what
// the paths of its files need.
type sample struct {
	path  string
	files map[string][]string // multihash -> paths
	// others are blocks of history that the index cannot make anew.
	others map[string]bool
}

func newSample(t *testing.T) *sample {
	s := &sample{path: filepath.Join(t.TempDir(), "r"), files: map[string][]string{}, others: map[string]bool{}}
	o := open(t, s.path)
	defer func() { must(t, o.Close()) }()
	rng := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 60_000)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	mkdir := func(parent tree.Ino, name string) tree.Ino {
		a, err := o.tree.Create(tree.Cred{}, parent, name, tree.Node{Kind: index.Dir, Perm: 0o755})
		must(t, err)
		return a.Ino
	}
	write := func(parent tree.Ino, name string, b []byte) tree.Ino {
		a, err := o.tree.Create(tree.Cred{}, parent, name, tree.Node{Kind: index.File, Perm: 0o644})
		must(t, err)
		_, err = o.tree.Write(t.Context(), a.Ino, b, 0, nil)
		must(t, err)
		return a.Ino
	}
	files := map[string]tree.Ino{}
	d := mkdir(tree.RootIno, "d")
	files["/d/large"] = write(d, "large", data)
	files["/d/part"] = write(d, "part", data[8192:16384]) // two chunks of the large one
	files["/small"] = write(tree.RootIno, "small", []byte("small"))
	wide := mkdir(d, "wide")
	for i := range 40 {
		name := fmt.Sprintf("entry-%d", i)
		files["/d/wide/"+name] = write(wide, name, fmt.Appendf(nil, "%d", i))
	}
	must(t, o.tree.Setxattr(files["/small"], "user.large", data[:5000], 0, false))
	_, err := o.tree.Link(files["/d/part"], wide, "hard")
	must(t, err)
	k, _, err := o.tree.Commit(t.Context(), tree.CommitOptions{Name: "one", Reason: "snapshot"})
	must(t, err)
	files["/d/wide/hard"] = files["/d/part"]
	for path, ino := range files {
		root, err := o.tree.Seal(t.Context(), ino)
		must(t, err)
		for h := range s.reach(t, o, root.Cid) {
			s.files[h] = append(s.files[h], path)
		}
	}
	c, err := o.tree.LoadCommit(t.Context(), k.Cid)
	must(t, err)
	s.others[string(k.Cid.Hash())], s.others[string(c.Links.Hash())] = true, true
	return s
}

// reach lists the blocks of a file's DAG.
func (s *sample) reach(t *testing.T, o *opened, c cid.Cid) map[string]bool {
	all := map[string]bool{string(c.Hash()): true}
	if c.Prefix().Codec == cid.DagProtobuf {
		b, err := o.Store.Get(t.Context(), c)
		must(t, err)
		nb := dagpb.Type.PBNode.NewBuilder()
		must(t, dagpb.DecodeBytes(nb, b))
		links := nb.Build().(dagpb.PBNode).Links
		for it := links.Iterator(); !it.Done(); {
			_, l := it.Next()
			child, err := cid.Decode(l.Hash.Link().String())
			must(t, err)
			maps.Copy(all, s.reach(t, o, child))
		}
	}
	return all
}

// damages are what happens to the files of blocks.
var damages = map[string]func(path string, b []byte) error{
	"flipped": func(path string, b []byte) error { b[len(b)/2] ^= 4; return os.WriteFile(path, b, 0o644) },
	"halved":  func(path string, b []byte) error { return os.WriteFile(path, b[:len(b)/2], 0o644) },
	"emptied": func(path string, b []byte) error { return os.WriteFile(path, nil, 0o644) },
	"removed": func(path string, b []byte) error { return os.Remove(path) },
}

// TestDamage damages each block of a repository in turn. It is the only one
// named, with the paths of all files that need it; blocks of directories are
// made anew from the index; others are moved aside; and all is well once the
// block is put again.
func TestDamage(t *testing.T) {
	s := newSample(t)
	blocks, err := filepath.Glob(filepath.Join(s.path, "blocks", "??", "*.data"))
	must(t, err)
	how := slices.Sorted(maps.Keys(damages))
	repaired, moved := 0, 0
	for i, block := range blocks {
		what := how[i%len(how)]
		name := filepath.Base(block)
		t.Run(what+" "+name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "r")
			must(t, os.CopyFS(path, os.DirFS(s.path)))
			rel, _ := filepath.Rel(s.path, block)
			sound, err := os.ReadFile(block)
			must(t, err)
			must(t, damages[what](filepath.Join(path, rel), bytes.Clone(sound)))

			o := open(t, path)
			defer func() { must(t, o.Close()) }()
			all, _, err := o.run(t, verify.Options{Data: true}, false)
			must(t, err)
			if len(all) != 1 || all[0].Outcome != "" {
				t.Fatalf("found %+v", all)
			}
			f := all[0]
			sum, err := mh.Sum(sound, mh.SHA2_256, -1)
			must(t, err)
			if !bytes.Equal(f.Cid.Hash(), sum) || (f.Problem == verify.Missing) != (what == "removed") {
				t.Errorf("found %+v", f)
			}
			paths := slices.DeleteFunc(slices.Clone(f.Paths), func(p string) bool { return !strings.HasPrefix(p, "/") })
			want := s.files[string(sum)]
			slices.Sort(paths)
			slices.Sort(want)
			if len(want) > 0 && !slices.Equal(paths, want) || len(f.Paths) == 0 {
				t.Errorf("paths %q, files %q need it", f.Paths, want)
			}

			all, r, err := o.run(t, verify.Options{Data: true}, true)
			must(t, err)
			if len(all) != 1 || !all[0].Cid.Equals(f.Cid) {
				t.Fatalf("repair found %+v", all)
			}
			_, err = os.Stat(filepath.Join(path, "quarantine", name))
			if aside := err == nil; aside != (what != "removed") {
				t.Errorf("in quarantine: %v", aside)
			}
			if len(want) == 0 && !s.others[string(sum)] {
				repaired++
				if all[0].Outcome != verify.Repaired || r.Left != 0 {
					t.Errorf("a block of a directory: %+v", all[0])
				}
			} else {
				moved++
				if all[0].Outcome == verify.Repaired || r.Left != 1 {
					t.Errorf("a block that cannot be made: %+v", all[0])
				}
				must(t, o.Store.Put(t.Context(), f.Cid, sound))
			}
			if all, _, err := o.run(t, verify.Options{Data: true}, true); err != nil || len(all) > 0 {
				t.Errorf("afterwards: %+v, %v", all, err)
			}
			if _, err := o.tree.Seal(t.Context(), tree.RootIno); err != nil {
				t.Error(err)
			}
		})
	}
	if repaired == 0 || moved == 0 {
		t.Errorf("%d repaired, %d moved", repaired, moved)
	}
}

// TestResume: a verification that is interrupted goes on where it was, and
// still knows what it found.
func TestResume(t *testing.T) {
	s := newSample(t)
	blocks, err := filepath.Glob(filepath.Join(s.path, "blocks", "??", "*.data"))
	must(t, err)
	must(t, os.WriteFile(blocks[0], []byte("damaged"), 0o644))
	o := open(t, s.path)
	defer func() { must(t, o.Close()) }()
	runs := 0
	for resume := false; ; resume = true {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		calls := 0
		var all []verify.Finding
		opts := verify.Options{Tree: o.tree, DB: o.DB, Store: o.Store, State: filepath.Join(o.Path, "verify"), Data: true, Resume: resume, Interval: 1,
			Pins:  func() iter.Seq2[verify.Pin, error] { return func(func(verify.Pin, error) bool) {} },
			Found: func(f verify.Finding) error { all = append(all, f); return nil },
			Progress: func(r verify.Report) {
				if r.Phase == "data" {
					calls++
				}
				if calls > 16 { // two for each block
					cancel()
				}
			}}
		r, err := verify.Run(ctx, opts)
		if runs++; runs > len(blocks) {
			t.Fatal("it does not get on")
		}
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			continue
		}
		if int(r.Blocks) != len(blocks) || len(all) != 1 || runs < 2 {
			t.Errorf("%d of %d blocks in %d runs, found %+v", r.Blocks, len(blocks), runs, all)
		}
		if _, err := os.Stat(opts.State); err == nil {
			t.Error("there is something to resume when all is done")
		}
		return
	}
}
