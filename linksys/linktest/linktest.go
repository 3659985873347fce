// Package linktest has what the tests of linksys and of the packages below it
// share: a store that counts and loses blocks, deterministic contents, and nodes
// encoded by hand, right or wrong.
package linktest

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys"
	"cafs/linksys/unixfs"
	"cafs/store"
	"cafs/store/disk"
)

// Stream returns n bytes of the generator described in unixfs/testdata/cids.tsv.
func Stream(seed uint64, n int) []byte {
	b := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		binary.BigEndian.PutUint64(b[i:], (uint64(i/8)+1+seed)*0x9E3779B97F4A7C15)
	}
	return b[:n]
}

// Recorder is a store that counts and can lose or fail what is asked of it.
type Recorder struct {
	*store.Mem
	mu     sync.Mutex
	Gets   map[cid.Cid]int // of whole blocks; to be read when nothing runs
	Ranges int             // reads of parts
	lost   map[cid.Cid]error
}

// NewStore returns an empty store.
func NewStore() *Recorder {
	return &Recorder{Mem: store.NewMem(), Gets: map[cid.Cid]int{}, lost: map[cid.Cid]error{}}
}

// Get implements store.Getter.
func (r *Recorder) Get(ctx context.Context, c cid.Cid) ([]byte, error) {
	r.mu.Lock()
	r.Gets[c]++
	err := r.lost[c]
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return r.Mem.Get(ctx, c)
}

// GetRange implements store.RangeGetter.
func (r *Recorder) GetRange(ctx context.Context, c cid.Cid, p []byte, off int64) (int, error) {
	r.mu.Lock()
	r.Ranges++
	err := r.lost[c]
	r.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return r.Mem.GetRange(ctx, c, p, off)
}

// Save stores a block of a codec without looking at it.
func (r *Recorder) Save(t testing.TB, codec uint64, data []byte) cid.Cid {
	t.Helper()
	c, err := cid.V1Builder{Codec: codec, MhType: mh.SHA2_256}.Sum(data)
	if err == nil {
		err = r.Put(context.Background(), c, data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Emit is a unixfs.Emit.
func (r *Recorder) Emit(b unixfs.Block) error { return r.Put(context.Background(), b.Cid, b.Data) }

// Lose makes a block missing.
func (r *Recorder) Lose(c cid.Cid) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost[c] = fmt.Errorf("store: get %s: %w", c, store.ErrNotFound)
}

// Find undoes Lose.
func (r *Recorder) Find(c cid.Cid) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.lost, c)
}

// Reads counts the blocks that were loaded.
func (r *Recorder) Reads() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.Gets)
}

// NewSystem returns a System that ends with the test.
func NewSystem(t testing.TB, s linksys.Blocks, o linksys.Options) *linksys.System {
	sys := linksys.New(s, o)
	t.Cleanup(func() {
		if err := sys.Close(); err != nil {
			t.Error(err)
		}
	})
	return sys
}

// WantErr fails the test unless err is want.
func WantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

// Entries builds n entries that all are the same small file.
func Entries(t testing.TB, s *Recorder, n int) map[string]unixfs.Entry {
	c := s.Save(t, cid.Raw, []byte("content"))
	m := make(map[string]unixfs.Entry, n)
	for i := range n {
		name := fmt.Sprintf("entry %d é%s", i, strings.Repeat("x", i%40))
		m[name] = unixfs.Entry{Name: name, Cid: c, Tsize: uint64(i)}
	}
	return m
}

// Seq yields the entries of a map, in no order.
func Seq(m map[string]unixfs.Entry) iter.Seq2[unixfs.Entry, error] {
	return func(yield func(unixfs.Entry, error) bool) {
		for _, e := range m {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// DirNode encodes a directory node, right or wrong.
func DirNode(data []byte, names ...string) []byte {
	target := cid.MustParse("bafkqaaa") // an empty identity CID
	return ShardNode(data, target, names...)
}

// ShardNode encodes a directory node whose entries all lead to target.
func ShardNode(data []byte, target cid.Cid, names ...string) []byte {
	var b []byte
	for _, name := range names {
		b = field(b, 0x12, append(field(field(nil, 0x0a, target.Bytes()), 0x12, []byte(name)), 0x18, 1))
	}
	return field(b, 0x0a, data)
}

// HamtData is the UnixFS message of a shard.
func HamtData(bitfield []byte, hash, fanout uint64) []byte {
	b := append([]byte{8, 5, 0x12, byte(len(bitfield))}, bitfield...)
	return binary.AppendUvarint(append(binary.AppendUvarint(append(b, 0x28), hash), 0x30), fanout)
}

// FileNode encodes a UnixFS file node, right or wrong. A size of 0 is left out.
func FileNode(links []cid.Cid, sizes []uint64, data []byte, size uint64) []byte {
	var b []byte
	for _, c := range links {
		b = field(b, 0x12, append(field(nil, 0x0a, c.Bytes()), 0x12, 0, 0x18, 1))
	}
	msg := []byte{8, 2}
	if data != nil {
		msg = field(msg, 0x12, data)
	}
	if size != 0 {
		msg = binary.AppendUvarint(append(msg, 0x18), size)
	}
	for _, n := range sizes {
		msg = binary.AppendUvarint(append(msg, 0x20), n)
	}
	return field(b, 0x0a, msg)
}

// field appends a protobuf field of bytes.
func field(b []byte, tag byte, v []byte) []byte {
	return append(binary.AppendUvarint(append(b, tag), uint64(len(v))), v...)
}

// MustCid is the CID of a block.
func MustCid(t testing.TB, codec uint64, data []byte) cid.Cid {
	t.Helper()
	c, err := cid.V1Builder{Codec: codec, MhType: mh.SHA2_256}.Sum(data)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 takes the clock")

// NewRand prints its seed; -seed gives it back.
func NewRand(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// OpenDir makes a store on disk, which ends with the test, and tells its folder.
func OpenDir(t testing.TB) (*store.Dir, string) {
	t.Helper()
	path := t.TempDir()
	s, err := Reopen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, path
}

// Reopen opens the store in a folder.
func Reopen(path string) (*store.Dir, error) {
	f, err := disk.OS(path)
	if err != nil {
		return nil, err
	}
	return store.Open(f, store.Options{CreateIfMissing: true})
}
