package repo

import (
	"testing"
	"time"

	"cafs/mount/tree"
)

// TestSurplus keeps what the rules say of commits made every half hour for 60 days.
func TestSurplus(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 10, 0, 0, time.Local)
	var all []tree.Kept
	for at := start; at.Before(start.AddDate(0, 0, 60)); at = at.Add(30 * time.Minute) {
		all = append(all, tree.Kept{Time: at, Reason: "hourly"})
	}
	all = append([]tree.Kept{{Time: start, Name: "mine"}}, all...)
	for _, c := range []struct {
		keep Keep
		want int
	}{
		{Keep{}, 1}, {Keep{Last: 3}, 4}, {Keep{Hourly: 5}, 6}, {Keep{Daily: 7}, 8}, {Keep{Weekly: 4}, 5},
		{Keep{Last: 2, Hourly: 2}, 4}, {Keep{Last: 1, Daily: 2}, 3}, {DefaultKeep, 1 + 24 + 1 + 6 + 3},
	} {
		gone := c.keep.surplus(all)
		if kept := len(all) - len(gone); kept != c.want {
			t.Errorf("%+v keeps %d, want %d", c.keep, kept, c.want)
		}
		for _, k := range gone {
			if k.Name != "" {
				t.Errorf("%+v gives up a snapshot", c.keep)
			}
		}
	}
}
