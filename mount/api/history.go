package api

import (
	"context"
	"encoding/json"
)

// Do does one of the operations of repo.History in the daemon. Its result goes
// into val, which may be nil; each, which may be nil too, gets what comes before.
func (c *Client) Do(ctx context.Context, op string, arg, val any, each func(json.RawMessage) error) error {
	_, err := c.call(ctx, op, arg, nil, nil, val, func(r Reply) error {
		if each == nil {
			return nil
		}
		return each(r.Val)
	})
	return err
}
