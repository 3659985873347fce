package daemon

import (
	"context"

	"github.com/ipfs/go-cid"

	"cafs/linksys/car"
	"cafs/mount/api"
	"cafs/mount/repo"
)

func (d *daemon) onExport(ctx context.Context, c *api.Call) (any, []byte, error) {
	var arg api.ExportArg
	if err := c.Arg(&arg); err != nil {
		return nil, nil, err
	}
	f, _, err := d.passed(c, "the output")
	if err != nil {
		return nil, nil, err
	}
	p := progress{send: func(e api.AddEvent) { _ = c.Send(e, nil) }}
	defer p.start()()
	stats, err := d.repo.ExportCar(ctx, f, arg.Root, car.ExportOptions{
		Selection: arg.Selection,
		Version:   arg.Version,
		Progress:  func(_ cid.Cid, n int64) { p.bytes.Add(n) },
	})
	return stats, nil, err
}

func (d *daemon) onImport(ctx context.Context, c *api.Call) (any, []byte, error) {
	var arg api.ImportArg
	if err := c.Arg(&arg); err != nil {
		return nil, nil, err
	}
	f, _, err := d.passed(c, arg.Name)
	if err != nil {
		return nil, nil, err
	}
	defer d.repo.Store.Sweep().End() // what is put, or found, no collection deletes
	p := progress{send: func(e api.AddEvent) { _ = c.Send(e, nil) }}
	defer p.start()()
	res, err := d.repo.ImportCar(ctx, f, repo.CarOptions{
		Name:     arg.Name,
		NoRoots:  arg.NoRoots,
		Keep:     d.history.Pin,
		Progress: func(_ cid.Cid, n int64) { p.bytes.Add(n) },
	})
	return res, nil, err
}

func (d *daemon) onDagSize(ctx context.Context, c *api.Call) (any, []byte, error) {
	k, err := blockCid(c)
	if err != nil {
		return nil, nil, err
	}
	n, err := d.repo.Sys.Measure(ctx, k)
	return n, nil, err
}
