package linksys

import (
	"slices"
	"sync"

	"github.com/ipfs/go-cid"
	"github.com/ipld/go-ipld-prime/linking/preload"
)

// preloader fetches the blocks a depth-first walk will come to next. All links
// of a block are named before the first is followed, so those not yet reached
// form a stack of lists.
type preloader struct {
	s      *System
	skip   func(cid.Cid) bool // what the walk will not load; may be nil
	window int                // blocks of one list asked for and not yet reached

	mu    sync.Mutex // guards the rest
	fresh bool       // the next link begins a block's list
	lists []linkList // of the blocks on the path, innermost last
}

// linkList is what is left of the links of one block, in order.
type linkList struct {
	links []cid.Cid
	asked int // of them, asked for; they come first
}

func newPreloader(s *System, skip func(cid.Cid) bool) *preloader {
	return &preloader{s: s, skip: skip, window: cap(s.tokens)}
}

// hint is a traversal's preload.Loader.
func (p *preloader) hint(_ preload.PreloadContext, l preload.Link) {
	if c, err := linkCid(l.Link); err == nil { // else the traversal will say so
		p.link(c)
	}
}

// link names a link of the block reached last.
func (p *preloader) link(c cid.Cid) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fresh || len(p.lists) == 0 {
		p.lists = append(p.lists, linkList{})
		p.fresh = false
	}
	if p.skip != nil && p.skip(c) {
		return
	}
	top := &p.lists[len(p.lists)-1]
	top.links = append(top.links, c)
	p.ask(top)
}

// reached notes that the walk loads c now, and asks for what follows.
func (p *preloader) reached(c cid.Cid) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fresh = true
	for i := len(p.lists) - 1; i >= 0; i-- {
		l := &p.lists[i]
		k := slices.Index(l.links, c)
		if k < 0 {
			continue
		}
		// What lies before it, and in the lists above, was passed over.
		l.links = l.links[k+1:]
		l.asked = max(l.asked-k-1, 0)
		p.lists = p.lists[:i+1]
		p.ask(l)
		return
	}
}

// ask fills a list's window. A block that no token is left for is not asked for
// again: whoever needs it fetches it.
func (p *preloader) ask(l *linkList) {
	for l.asked < min(p.window, len(l.links)) {
		p.s.tryAhead(l.links[l.asked])
		l.asked++
	}
}
