package linksys

import (
	"slices"
	"sync"

	"github.com/ipfs/go-cid"
	"github.com/ipld/go-ipld-prime/linking/preload"
)

// preloader fetches the blocks a depth-first traversal will come to next. The
// traversal names all links of a block before it follows the first, so those
// not yet reached form a stack of lists.
type preloader struct {
	s      *System
	skip   func(cid.Cid) bool // what the traversal will not load; may be nil
	window int                // blocks asked for and not yet reached

	mu      sync.Mutex  // guards the rest
	fresh   bool        // the next link begins a block's list
	pending [][]cid.Cid // of blocks not asked for, innermost last, each in order
	asked   map[cid.Cid]struct{}
}

func newPreloader(s *System, skip func(cid.Cid) bool) *preloader {
	return &preloader{s: s, skip: skip, window: cap(s.tokens), asked: make(map[cid.Cid]struct{})}
}

// hint is the traversal's preload.Loader.
func (p *preloader) hint(_ preload.PreloadContext, l preload.Link) {
	c, err := linkCid(l.Link)
	if err != nil {
		return // the traversal will say so
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fresh || len(p.pending) == 0 {
		p.pending = append(p.pending, nil)
		p.fresh = false
	}
	if p.skip != nil && p.skip(c) {
		return
	}
	top := &p.pending[len(p.pending)-1]
	*top = append(*top, c)
}

// reached notes that the traversal loads c now, and asks for what follows.
func (p *preloader) reached(c cid.Cid) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fresh = true
	if _, ok := p.asked[c]; ok {
		delete(p.asked, c)
	} else {
		p.drop(c)
	}
	for len(p.pending) > 0 && len(p.asked) < p.window {
		top := &p.pending[len(p.pending)-1]
		if len(*top) == 0 {
			p.pending = p.pending[:len(p.pending)-1]
			continue
		}
		next := (*top)[0]
		*top = (*top)[1:]
		if _, ok := p.asked[next]; !ok {
			p.asked[next] = struct{}{}
			p.s.tryAhead(next)
		}
	}
}

// drop forgets what lies before c in the order of the traversal: it was passed over.
func (p *preloader) drop(c cid.Cid) {
	for i := len(p.pending) - 1; i >= 0; i-- {
		if k := slices.Index(p.pending[i], c); k >= 0 {
			p.pending = p.pending[:i+1]
			p.pending[i] = p.pending[i][k+1:]
			clear(p.asked)
			return
		}
	}
}
