package daemon

import (
	"context"
	"encoding/json"

	"cafs/mount/api"
	"cafs/mount/tree"
)

// onHistory answers an operation of repo.History.
func (d *daemon) onHistory(op string) api.Handler {
	return func(ctx context.Context, c *api.Call) (any, []byte, error) {
		var arg json.RawMessage
		if err := c.Arg(&arg); err != nil {
			return nil, nil, err
		}
		defer d.house.told.Add(1)
		val, err := d.history.Do(ctx, op, arg, func(v any) error { return c.Send(v, nil) })
		return val, nil, err
	}
}

// touched tells the kernel of names that changed without its asking.
func (d *daemon) touched(all []tree.Touched) {
	s := d.live.Load()
	if s == nil {
		return
	}
	for _, t := range all {
		var err error
		if t.Name == "" {
			err = s.NotifyContent(t.Dir)
		} else {
			err = s.NotifyEntry(t.Dir, t.Name)
		}
		if err != nil {
			d.log.Warn("the kernel may show what was replaced", "dir", t.Dir, "name", t.Name, "err", err)
		}
	}
}
