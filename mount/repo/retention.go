package repo

import (
	"context"
	"fmt"
	"time"

	"cafs/mount/tree"
)

// Keep says which automatic commits are kept; named ones always are, until they
// are removed. A commit is kept if any of the numbers keeps it.
type Keep struct {
	Last   int `json:"last"`   // the newest
	Hourly int `json:"hourly"` // the newest of each of the last hours that have one
	Daily  int `json:"daily"`
	Weekly int `json:"weekly"`
}

// DefaultKeep is what a mount keeps unless told otherwise.
var DefaultKeep = Keep{Last: 3, Hourly: 24, Daily: 7, Weekly: 4}

// Prune gives up automatic commits that are not to be kept.
func (h *History) Prune(ctx context.Context, k Keep) error {
	all, err := h.commits()
	if err != nil {
		return err
	}
	if gone := k.surplus(all); len(gone) > 0 {
		return h.Tree.DropCommits(ctx, gone...)
	}
	return nil
}

// surplus picks what is not to be kept from commits in order of age.
func (k Keep) surplus(all []tree.Kept) []tree.Kept {
	var gone []tree.Kept
	rules := []struct {
		left int
		last string
		of   func(time.Time) string
	}{
		{k.Last, "", func(t time.Time) string { return t.String() }},
		{k.Hourly, "", func(t time.Time) string { return t.Format("2006-01-02T15") }},
		{k.Daily, "", func(t time.Time) string { return t.Format(time.DateOnly) }},
		{k.Weekly, "", func(t time.Time) string { y, w := t.ISOWeek(); return fmt.Sprint(y, w) }},
	}
	for i := len(all) - 1; i >= 0; i-- {
		c := all[i]
		if c.Name != "" {
			continue
		}
		keep := false
		for r := range rules {
			rule := &rules[r]
			if id := rule.of(c.Time.Local()); rule.left > 0 && id != rule.last {
				rule.left--
				rule.last = id
				keep = true
			}
		}
		if !keep {
			gone = append(gone, c)
		}
	}
	return gone
}
