package linksys

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"

	"github.com/ipfs/go-cid"
	dagpb "github.com/ipld/go-codec-dagpb"
	"github.com/ipld/go-ipld-prime/datamodel"
	"github.com/ipld/go-ipld-prime/linking"
	cidlink "github.com/ipld/go-ipld-prime/linking/cid"
	"github.com/ipld/go-ipld-prime/multicodec"
	"github.com/ipld/go-ipld-prime/node/basicnode"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys/unixfs"
	"cafs/store"
)

// Blocks is what a System needs of a store. When the value also is a
// [store.RangeGetter], [store.Lender], [store.Sizer], [store.Haser] or
// [store.Syncer], those roles are used: for small reads of large leaves, for
// reading through files, for sizes without reading, for completeness checks and
// for durable imports.
type Blocks interface {
	store.Getter
	store.Putter
}

// Options of a System. The zero value is useful.
type Options struct {
	// CacheBytes bounds the memory held by decoded nodes and by leaves read
	// ahead, together; 64 MiB when 0.
	CacheBytes int64
	// Prefetch bounds how many blocks are fetched at a time ahead of a reader;
	// 0 means four for each processor.
	Prefetch int
	// Logger hears of hidden directory entries; nil means silence.
	Logger *slog.Logger
}

// System reads and writes IPLD data in a block store. All methods may be
// called concurrently.
type System struct {
	blocks Blocks
	ranges store.RangeGetter // nil when the store has no such role
	lends  store.Lender      // nil when the store has no such role
	sizes  store.Sizer       // nil when the store has no such role
	log    *slog.Logger

	cache  *cache
	tokens chan struct{} // one for each block being fetched ahead
	zeros  zeroLeaves

	mu   sync.Mutex         // orders the start of goroutines and Close
	life context.Context    // of what is fetched ahead
	stop context.CancelFunc // ends life
	busy sync.WaitGroup     // what is fetched ahead
}

const (
	defaultCacheBytes = 64 << 20
	// maxIdentity is the longest digest an identity CID may carry, as in boxo's verifcid.
	maxIdentity = 128
)

var (
	// ErrNotFile: file content was asked of something that is no file.
	ErrNotFile = errors.New("not a file")
	// ErrNotUnixFS: a block of a codec that UnixFS does not use.
	ErrNotUnixFS = errors.New("not UnixFS")
	// ErrCodec: a codec that is not supported.
	ErrCodec = errors.New("unsupported codec")
	// ErrBudget: a DAG is deeper or larger than a walk may become.
	ErrBudget = errors.New("DAG exceeds the limits of a walk")
	// ErrIncomplete: a root was imported whose DAG is not all there.
	ErrIncomplete = errors.New("DAG is incomplete")
)

// New returns a System over a store. Close it before the store.
func New(s Blocks, o Options) *System {
	if o.CacheBytes <= 0 {
		o.CacheBytes = defaultCacheBytes
	}
	if o.Prefetch <= 0 {
		o.Prefetch = 4 * runtime.GOMAXPROCS(0)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	sys := &System{
		blocks: s,
		log:    o.Logger,
		tokens: make(chan struct{}, o.Prefetch),
	}
	sys.cache = newCache(o.CacheBytes/4, o.CacheBytes-o.CacheBytes/4, sys.loadItem)
	sys.ranges, _ = s.(store.RangeGetter)
	sys.sizes, _ = s.(store.Sizer)
	sys.lends, _ = s.(store.Lender)
	sys.life, sys.stop = context.WithCancel(context.Background())
	return sys
}

// Close ends what is being fetched ahead and waits for it. It does not close
// the store. Open Files fail afterwards only where they would need a fetch.
func (s *System) Close() error {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.busy.Wait()
	return nil
}

// get returns the bytes of a block: read-only, checked against c by the store.
// Identity CIDs carry their bytes and never reach the store.
func (s *System) get(ctx context.Context, c cid.Cid) ([]byte, error) {
	if data, ok, err := inline(c); ok {
		return data, err
	}
	data, err := s.blocks.Get(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("linksys: block %s: %w", c, err)
	}
	return data, nil
}

// block is get through the cache. What is not there goes in only when it is
// raw: decoding anything else is the caller's business.
func (s *System) block(ctx context.Context, c cid.Cid) ([]byte, error) {
	if c.Defined() && c.Prefix().Codec == cid.Raw {
		it, err := s.cache.get(ctx, c)
		if err != nil {
			return nil, err
		}
		return it.block, nil
	}
	if it := s.cache.peek(c); it != nil {
		return it.block, nil
	}
	return s.get(ctx, c)
}

// size returns the length of a block without reading it where the store can.
func (s *System) size(ctx context.Context, c cid.Cid) (int64, error) {
	if data, ok, err := inline(c); ok {
		return int64(len(data)), err
	}
	if s.sizes == nil {
		data, err := s.get(ctx, c)
		return int64(len(data)), err
	}
	n, err := s.sizes.Size(ctx, c)
	if err != nil {
		return 0, fmt.Errorf("linksys: block %s: %w", c, err)
	}
	return n, nil
}

// rawSize is size for a raw block that may have been read already, or is being
// read ahead.
func (s *System) rawSize(ctx context.Context, c cid.Cid) (int64, error) {
	if !s.cache.known(c) {
		return s.size(ctx, c)
	}
	it, err := s.cache.borrow(ctx, c)
	if err != nil {
		return 0, err
	}
	defer s.cache.giveBack(it)
	return int64(len(it.leaf)), nil
}

func isIdentity(c cid.Cid) bool { return c.Prefix().MhType == mh.IDENTITY }

// inline returns the bytes an identity CID carries; ok is false for all others.
func inline(c cid.Cid) (data []byte, ok bool, err error) {
	if !c.Defined() {
		return nil, true, fmt.Errorf("linksys: undefined CID: %w", unixfs.ErrMalformed)
	}
	p := c.Prefix()
	if p.MhType != mh.IDENTITY {
		return nil, false, nil
	}
	d, err := mh.Decode(c.Hash())
	if err != nil || len(d.Digest) > maxIdentity {
		return nil, true, fmt.Errorf("linksys: identity CID of %d bytes: %w", len(c.Hash()), unixfs.ErrMalformed)
	}
	return d.Digest, true, nil
}

// blockReader is what StorageReadOpener hands out. Codecs that look for Bytes
// (raw and dag-pb) alias the slice; nothing is copied.
type blockReader struct {
	data []byte
	off  int
}

func (r *blockReader) Bytes() []byte { return r.data[r.off:] }

func (r *blockReader) Read(p []byte) (int, error) {
	if r.off == len(r.data) {
		return 0, io.EOF
	}
	n := copy(p, r.data[r.off:])
	r.off += n
	return n, nil
}

// LinkSystem returns a go-ipld-prime LinkSystem over the store: raw, dag-pb,
// dag-cbor, dag-json, cbor and json, with the reifiers "unixfs" and
// "unixfs-preload". Reading copies nothing and trusts the store, which has
// checked the bytes already; writing computes the CID from the very bytes that
// are stored, and they are durable after the store's Sync.
func (s *System) LinkSystem() linking.LinkSystem {
	ls := cidlink.LinkSystemUsingMulticodecRegistry(codecs)
	ls.TrustedStorage = true
	ls.StorageReadOpener = func(lc linking.LinkContext, l datamodel.Link) (io.Reader, error) {
		c, err := linkCid(l)
		if err != nil {
			return nil, err
		}
		data, err := s.block(contextOf(lc), c)
		if err != nil {
			return nil, err
		}
		return &blockReader{data: data}, nil
	}
	ls.StorageWriteOpener = s.writeOpener
	ls.KnownReifiers = map[string]linking.NodeReifier{
		"unixfs":         s.reify,
		"unixfs-preload": s.reify,
	}
	return ls
}

func contextOf(lc linking.LinkContext) context.Context {
	if lc.Ctx == nil {
		return context.Background()
	}
	return lc.Ctx
}

func link(c cid.Cid) datamodel.Link { return cidlink.Link{Cid: c} }

func linkCid(l datamodel.Link) (cid.Cid, error) {
	cl, ok := l.(cidlink.Link)
	if !ok {
		return cid.Undef, fmt.Errorf("linksys: link of type %T is no CID: %w", l, unixfs.ErrMalformed)
	}
	return cl.Cid, nil
}

// chooser picks the node implementation a block is decoded into.
func chooser(l datamodel.Link, lc linking.LinkContext) (datamodel.NodePrototype, error) {
	if cl, ok := l.(cidlink.Link); ok {
		switch cl.Cid.Prefix().Codec {
		case cid.DagProtobuf:
			return dagpb.Type.PBNode, nil
		case cid.Raw:
			return basicnode.Prototype.Bytes, nil
		}
	}
	return basicnode.Prototype.Any, nil
}

// codecs holds exactly what cafs reads and writes, so that no import elsewhere
// in the program changes it.
var codecs = func() multicodec.Registry {
	var r multicodec.Registry
	registerCodecs(&r)
	return r
}()
