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
	window int // blocks asked for and not yet reached

	mu      sync.Mutex  // guards the rest
	fresh   bool        // the next link begins a block's list
	pending [][]cid.Cid // of blocks not asked for, innermost last, each in order
	asked   map[cid.Cid]struct{}
	seen    map[cid.Cid]struct{} // reached; only when each block is needed once
}

func newPreloader(s *System, once bool) *preloader {
	p := &preloader{s: s, window: cap(s.tokens), asked: make(map[cid.Cid]struct{})}
	if once {
		p.seen = make(map[cid.Cid]struct{})
	}
	return p
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
	if _, ok := p.seen[c]; ok {
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
	if p.seen != nil {
		p.seen[c] = struct{}{}
	}
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
