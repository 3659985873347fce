package disk

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// Crash returns what a power cut at this moment leaves, as a new file system in
// which everything is durable. m goes on as if nothing had happened.
//
// Of what was not synced, each thing is kept with probability keep by itself:
// each change of names of a folder (a rename within one folder is one change;
// of a rename across folders, the removal never survives without the addition),
// each file's size, and each page of 4 KiB. A page that is not kept whole has
// some earlier state it had since the last sync; a file's size likewise. keep 0
// loses everything that was not synced, keep 1 loses nothing. The result is a
// function of the seed and the calls made before.
func (m *Mem) Crash(seed int64, keep float64) *Mem {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	c := crash{
		rng:  rand.New(rand.NewPCG(uint64(seed), 0x63616673)),
		keep: keep,
		kept: map[*change]bool{},
		made: map[*node]*node{},
		w:    &world{dirty: map[*node]bool{}, capacity: m.w.capacity},
	}
	c.decide(m.w)
	c.w.root = c.copy(m.w.root)
	return newMem(c.w)
}

type crash struct {
	rng  *rand.Rand
	keep float64
	kept map[*change]bool
	made map[*node]*node // old to new
	w    *world
}

// decide says for each change of names whether it survives. Folders are visited
// in the order of the tree, so that the seed alone decides.
func (c *crash) decide(w *world) {
	seen := map[*node]bool{}
	var visit func(n *node)
	visit = func(n *node) {
		if n == nil || n.file != nil || seen[n] {
			return
		}
		seen[n] = true
		for _, ch := range n.changes {
			if c.rng.Float64() < c.keep {
				c.keepChange(ch)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(n.durable)) {
			visit(n.durable[name])
		}
		for _, ch := range n.changes {
			for _, name := range slices.Sorted(maps.Keys(ch.set)) {
				visit(ch.set[name])
			}
		}
	}
	visit(w.root)
}

func (c *crash) keepChange(ch *change) {
	for ; ch != nil && !ch.done; ch = ch.needs {
		c.kept[ch] = true
	}
}

// copy makes the durable version of a file or folder and all below it.
func (c *crash) copy(n *node) *node {
	if made := c.made[n]; made != nil {
		made.nlink++
		return made
	}
	if n.file != nil {
		made := &node{mode: n.mode, file: c.copyPages(n.file), nlink: 1}
		c.made[n] = made
		c.w.used += made.file.allocated()
		return made
	}
	made := newFolder(n.mode)
	c.made[n] = made
	names := maps.Clone(n.durable)
	for _, ch := range n.changes {
		if !c.kept[ch] {
			continue
		}
		for name, child := range ch.set {
			if child == nil {
				delete(names, name)
			} else {
				names[name] = child
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if child := names[name]; child.file != nil || c.made[child] == nil {
			made.names[name] = c.copy(child)
		}
	}
	made.durable = maps.Clone(made.names)
	return made
}

func (c *crash) copyPages(m *memPages) *memPages {
	made := newMemPages()
	made.size = m.durableSize
	if n := c.prefix(len(m.sizes)); n > 0 {
		made.size = m.sizes[n-1]
	}
	made.durableSize = made.size
	for _, idx := range slices.Sorted(maps.Keys(m.pages)) {
		old := m.pages[idx]
		n := c.prefix(len(old.edits)) // before the size, so that the seed's use does not depend on it
		if idx*pageSize >= made.size {
			continue
		}
		if n == 0 {
			// Shared: an array that is durable is not written to any more.
			made.pages[idx] = &page{now: old.durable, durable: old.durable}
			if rest := made.size - idx*pageSize; rest >= pageSize || old.durable == nil {
				continue
			}
		}
		var data [pageSize]byte
		if old.durable != nil {
			data = *old.durable
		}
		for _, e := range old.edits[:n] {
			old.apply(&data, e)
		}
		if rest := made.size - idx*pageSize; rest < pageSize {
			clear(data[rest:])
		}
		made.pages[idx] = &page{now: &data, durable: &data}
	}
	return made
}

// prefix says how many of n steps survive: all of them with probability keep,
// else any smaller number; none when keep is 0.
func (c *crash) prefix(n int) int {
	if n == 0 {
		return 0
	}
	if c.rng.Float64() < c.keep {
		return n
	}
	if c.keep <= 0 {
		return 0
	}
	return c.rng.IntN(n)
}
