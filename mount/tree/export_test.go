package tree

import "context"

// Publish is what the commit tick does.
func (t *Tree) Publish(ctx context.Context) error { return t.publishAll(ctx) }

// Reclaim is what the background does about staging.
func (t *Tree) Reclaim(ctx context.Context) error { return t.reclaim(ctx) }

// EmptyGrave removes what restores replaced, as the background does.
func (t *Tree) EmptyGrave(ctx context.Context) error { return t.emptyGrave(ctx) }

// SweepOrphans is what the background does first.
func (t *Tree) SweepOrphans() error { return t.sweepOrphans() }
