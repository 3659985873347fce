package adapter_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"cafs/store"
	"cafs/store/adapter"
	"cafs/store/disk"
	"cafs/store/storetest"

	"github.com/ipfs/boxo/blockstore"
	"github.com/ipfs/go-cid"
	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
	dsync "github.com/ipfs/go-datastore/sync"
	format "github.com/ipfs/go-ipld-format"
	"github.com/ipld/go-ipld-prime"
	_ "github.com/ipld/go-ipld-prime/codec/dagcbor"
	"github.com/ipld/go-ipld-prime/datamodel"
	"github.com/ipld/go-ipld-prime/fluent/qp"
	cidlink "github.com/ipld/go-ipld-prime/linking/cid"
	"github.com/ipld/go-ipld-prime/node/basicnode"
	mh "github.com/multiformats/go-multihash"
)

func newDir(t *testing.T) *store.Dir {
	d, err := store.Open(disk.NewMem(), store.Options{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// TestSuite: foreign stores behind our roles, and ours there and back.
func TestSuite(t *testing.T) {
	mapStore := func() ds.Batching { return dsync.MutexWrap(ds.NewMapDatastore()) }
	for name, open := range map[string]func(t *testing.T) store.Store{
		"boxo blockstore": func(t *testing.T) store.Store {
			return adapter.FromBlockstore(blockstore.NewBlockstore(mapStore()))
		},
		"datastore": func(t *testing.T) store.Store { return adapter.FromDatastore(mapStore()) },
		"blockstore and back": func(t *testing.T) store.Store {
			return adapter.FromBlockstore(adapter.NewBlockstore(newDir(t)))
		},
		"datastore and back": func(t *testing.T) store.Store {
			return adapter.FromDatastore(adapter.NewDatastore(newDir(t)))
		},
		"boxo blockstore over our datastore": func(t *testing.T) store.Store {
			return adapter.FromBlockstore(blockstore.NewBlockstore(adapter.NewDatastore(newDir(t)), blockstore.NoPrefix()))
		},
	} {
		t.Run(name, func(t *testing.T) { storetest.Test(t, open) })
	}
}

// TestForeignErrors: each side gets its own sentinel.
func TestForeignErrors(t *testing.T) {
	ctx := context.Background()
	d := newDir(t)
	c, b := storetest.Block(1, 100)
	bs, dst := adapter.NewBlockstore(d), adapter.NewDatastore(d)
	if _, err := bs.Get(ctx, c); !format.IsNotFound(err) {
		t.Errorf("blockstore: %v", err)
	}
	if err := bs.View(ctx, c, func([]byte) error { return nil }); !format.IsNotFound(err) {
		t.Errorf("view: %v", err)
	}
	if _, err := dst.Get(ctx, ds.NewKey("/local/filesroot")); err != ds.ErrNotFound {
		t.Errorf("datastore, key of no block: %v", err)
	}
	if err := dst.Put(ctx, ds.NewKey("/local/filesroot"), b); !errors.Is(err, adapter.ErrKey) {
		t.Errorf("datastore, put under the key of no block: %v", err)
	}
	if err := adapter.NewStorage(d).Put(ctx, string(c.Bytes()), b[1:]); !errors.Is(err, store.ErrMismatch) {
		t.Errorf("storage, wrong bytes: %v", err)
	}
}

// TestForeignDamage: bytes that another's store returns are not believed.
func TestForeignDamage(t *testing.T) {
	ctx := context.Background()
	m := ds.NewMapDatastore()
	s := adapter.FromDatastore(m)
	c, b := storetest.Block(1, 100)
	if err := s.Put(ctx, c, b); err != nil {
		t.Fatal(err)
	}
	for e := range s.All(ctx) {
		if err := m.Put(ctx, ds.NewKey(keyOf(t, m)), append([]byte{1}, b...)); err != nil || !bytes.Equal(e.Hash, c.Hash()) {
			t.Fatal(err)
		}
	}
	if _, err := s.Get(ctx, c); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("get of a damaged block: %v", err)
	}
	if _, err := adapter.FromBlockstore(blockstore.NewBlockstore(m, blockstore.NoPrefix())).Get(ctx, c); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("blockstore, get of a damaged block: %v", err)
	}
}

// TestLinkSystem stores and loads nodes of go-ipld-prime through every storage
// interface it has.
func TestLinkSystem(t *testing.T) {
	ctx := context.Background()
	s := adapter.NewStorage(newDir(t))
	ls := cidlink.DefaultLinkSystem()
	ls.SetReadStorage(s)
	ls.SetWriteStorage(s)
	node, err := qp.BuildMap(basicnode.Prototype.Any, 1, func(m datamodel.MapAssembler) {
		qp.MapEntry(m, "hello", qp.String("world"))
	})
	if err != nil {
		t.Fatal(err)
	}
	proto := cidlink.LinkPrototype{Prefix: cid.Prefix{Version: 1, Codec: cid.DagCBOR, MhType: mh.SHA2_256, MhLength: 32}}
	lnk, err := ls.Store(ipld.LinkContext{Ctx: ctx}, proto, node)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ls.Load(ipld.LinkContext{Ctx: ctx}, lnk, basicnode.Prototype.Any)
	if err != nil || !ipld.DeepEqual(got, node) {
		t.Fatalf("load: %v", err)
	}
	key := lnk.Binary()
	raw, err := s.Get(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.GetStream(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if rest := r.(interface{ Bytes() []byte }).Bytes(); !bytes.Equal(rest, raw[1:]) {
		t.Error("Bytes is not the unread rest")
	}
	if p, closer, err := s.Peek(ctx, key); err != nil || !bytes.Equal(p, raw) || closer.Close() != nil {
		t.Errorf("peek: %v", err)
	}
	c, b := storetest.Block(2, 1000)
	if err := s.PutVec(ctx, string(c.Bytes()), [][]byte{b[:10], nil, b[10:]}); err != nil {
		t.Error(err)
	}
	w, _, err := s.PutStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, store.MaxBlock+1)); err == nil {
		t.Error("a stream over the limit was taken")
	}
}

// keyOf is the only key in m.
func keyOf(t *testing.T, m *ds.MapDatastore) string {
	t.Helper()
	res, err := m.Query(context.Background(), query.Query{KeysOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	all, err := res.Rest()
	if err != nil || len(all) != 1 {
		t.Fatalf("%d keys, %v", len(all), err)
	}
	return all[0].Key
}
