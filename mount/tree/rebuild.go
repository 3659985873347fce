package tree

import (
	"context"
	"encoding/json"
	"fmt"
)

// Rebuild makes a new tree show what the last of the given commits has, and
// keeps all of them; the index knows none of them. Unlike Restore it makes no
// commit of the state before. It is durable when Rebuild returns.
func (t *Tree) Rebuild(ctx context.Context, commits ...Kept) error {
	t.sealing.one.Lock()
	defer t.sealing.one.Unlock()
	defer t.lease()()
	b := t.db.NewBatch()
	defer b.Close()
	for _, k := range commits {
		val, err := json.Marshal(k)
		if err != nil {
			return fmt.Errorf("tree: rebuild: %w", err)
		}
		b.SetRef(k.ref(), val)
	}
	if err := b.Commit(); err != nil {
		return err
	}
	last, err := t.LoadCommit(ctx, commits[len(commits)-1].Cid)
	if err != nil {
		return err
	}
	e, err := t.reader().Walk(ctx, &last, "")
	if err != nil {
		return fmt.Errorf("tree: rebuild: %w", err)
	}
	if _, err := t.put(ctx, e, last.Links, "", true, nil); err != nil {
		return fmt.Errorf("tree: rebuild: %w", err)
	}
	return t.db.Sync(ctx)
}
