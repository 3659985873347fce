package daemon

import (
	"context"
	"fmt"
	"path"
	"strings"
	"syscall"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"

	"cafs/mount/api"
	"cafs/mount/repo"
	"cafs/mount/tree"
	"cafs/store"
)

// handlers are the operations of the control socket.
func (d *daemon) handlers() map[string]api.Handler {
	all := map[string]api.Handler{
		api.OpStatus:   d.onStatus,
		api.OpSync:     d.onSync,
		api.OpStop:     d.onStop,
		api.OpCid:      d.onCid,
		api.OpAdd:      d.onAdd,
		api.OpExport:   d.onExport,
		api.OpImport:   d.onImport,
		api.OpDagSize:  d.onDagSize,
		api.OpKeep:     d.onKeep,
		api.OpRoots:    d.onRoots,
		api.OpBlockGet: d.onBlockGet,
		api.OpBlockPut: d.onBlockPut,
		api.OpBlockHas: d.onBlockHas,
		api.OpBlockLen: d.onBlockLen,
		api.OpBlockAll: d.onBlockAll,
		api.OpProfile:  d.onProfile,
	}
	for _, op := range repo.Ops {
		all[op] = d.onHistory(op)
	}
	return all
}

func (d *daemon) onStatus(ctx context.Context, c *api.Call) (any, []byte, error) {
	s := api.Status{
		PID:        d.info.PID,
		Version:    d.opts.Version,
		Repo:       d.info.Repo,
		Mountpoint: d.info.Mountpoint,
		Profile:    d.info.Profile,
		Shard:      d.repo.Store.Shard().String(),
		Since:      d.repo.Lock.Holder().Since,
	}
	t, b := d.tree.Stats(), d.repo.Store.Stats()
	s.Inodes, s.DirtyFiles, s.UnsealedFiles = t.Inodes, int64(t.Dirty), int64(t.Quiet)
	s.DirtyBytes, s.StagedBytes = t.Content.Dirty, t.Content.Staged
	if m := d.live.Load(); m != nil {
		s.Messages = m.Ops()
	}
	s.PendingBytes = b.PendingBytes
	if u, err := d.tree.Statfs(); err == nil {
		s.FreeBytes, s.TotalBytes = u.Avail, u.Total
	}
	last, at := d.history.Last()
	s.HistoryBytes, s.Collected = last.HistoryBytes, at
	if err := d.repo.DB.Err(); err != nil {
		s.Failed = err.Error()
	}
	return s, nil, nil
}

func (d *daemon) onSync(ctx context.Context, c *api.Call) (any, []byte, error) {
	return nil, nil, d.sync(ctx)
}

// sync makes everything durable.
func (d *daemon) sync(ctx context.Context) error {
	if err := d.tree.Sync(ctx); err != nil {
		return err
	}
	return d.repo.Store.Sync(ctx)
}

func (d *daemon) onStop(ctx context.Context, c *api.Call) (any, []byte, error) {
	var arg api.StopArg
	if err := c.Arg(&arg); err != nil {
		return nil, nil, err
	}
	if arg.Seal {
		d.sealAtEnd.Store(true)
	}
	return nil, nil, d.stop(arg.Detach)
}

func (d *daemon) onCid(ctx context.Context, c *api.Call) (any, []byte, error) {
	var arg api.CidArg
	if err := c.Arg(&arg); err != nil {
		return nil, nil, err
	}
	ino := tree.Ino(arg.Ino)
	if ino == 0 {
		var release func()
		var err error
		if ino, release, err = d.walk(arg.Path); err != nil {
			return nil, nil, err
		}
		defer release()
	}
	root, err := d.tree.Seal(ctx, ino)
	if err != nil {
		return nil, nil, err
	}
	return api.Root{Cid: root.Cid, Size: root.Size, Tsize: root.Tsize}, nil, nil
}

// walk finds a path of the tree; release gives the reference back.
func (d *daemon) walk(name string) (ino tree.Ino, release func(), err error) {
	ino, release = tree.RootIno, func() {}
	for _, part := range strings.Split(path.Clean("/" + name)[1:], "/") {
		if part == "" {
			break // the root
		}
		a, err := d.tree.Lookup(ino, part)
		release()
		if err != nil {
			return 0, nil, fmt.Errorf("daemon: %q: %w", name, err)
		}
		ino, release = a.Ino, func() { d.tree.Forget(a.Ino, 1) }
	}
	return ino, release, nil
}

// roots is what .cafs/ipfs lists.
func (d *daemon) roots(ctx context.Context) ([]cid.Cid, error) {
	var all []cid.Cid
	for r, err := range d.repo.Roots() {
		if err != nil {
			return nil, err
		}
		all = append(all, r.Cid)
	}
	return all, ctx.Err()
}

// batchSize is how many items one reply of a list holds.
const batchSize = 1024

func (d *daemon) onRoots(ctx context.Context, c *api.Call) (any, []byte, error) {
	var batch []api.NamedRoot
	for r, err := range d.repo.Roots() {
		if err != nil {
			return nil, nil, err
		}
		batch = append(batch, api.NamedRoot{Name: r.Name, Cid: r.Cid, Time: r.Time})
		if len(batch) == batchSize {
			if err := c.Send(batch, nil); err != nil {
				return nil, nil, err
			}
			batch = batch[:0]
		}
	}
	return nil, nil, c.Send(batch, nil)
}

// blockCid is the argument of the block operations.
func blockCid(c *api.Call) (cid.Cid, error) {
	var arg api.BlockArg
	if err := c.Arg(&arg); err != nil {
		return cid.Undef, err
	}
	if !arg.Cid.Defined() {
		return cid.Undef, fmt.Errorf("daemon: no CID: %w", syscall.EINVAL)
	}
	return arg.Cid, nil
}

func (d *daemon) onBlockGet(ctx context.Context, c *api.Call) (any, []byte, error) {
	k, err := blockCid(c)
	if err != nil {
		return nil, nil, err
	}
	block, err := d.repo.Store.Get(ctx, k)
	return nil, block, err
}

func (d *daemon) onBlockPut(ctx context.Context, c *api.Call) (any, []byte, error) {
	k, err := blockCid(c)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, store.PutVerified(ctx, d.repo.Store, k, c.Body)
}

func (d *daemon) onBlockHas(ctx context.Context, c *api.Call) (any, []byte, error) {
	k, err := blockCid(c)
	if err != nil {
		return nil, nil, err
	}
	ok, err := d.repo.Store.Has(ctx, k)
	return ok, nil, err
}

func (d *daemon) onBlockLen(ctx context.Context, c *api.Call) (any, []byte, error) {
	k, err := blockCid(c)
	if err != nil {
		return nil, nil, err
	}
	n, err := d.repo.Store.Size(ctx, k)
	return n, nil, err
}

func (d *daemon) onBlockAll(ctx context.Context, c *api.Call) (any, []byte, error) {
	batch := make([]api.BlockInfo, 0, batchSize)
	for e, err := range d.repo.Store.All(ctx) {
		if err != nil {
			return nil, nil, err
		}
		batch = append(batch, api.BlockInfo{Cid: cid.NewCidV1(cid.Raw, mh.Multihash(e.Hash)), Size: e.Size})
		if len(batch) == batchSize {
			if err := c.Send(batch, nil); err != nil {
				return nil, nil, err
			}
			batch = batch[:0]
		}
	}
	return nil, nil, c.Send(batch, nil)
}
