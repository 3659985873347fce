package store

import (
	"hash/crc32"
	"sync"

	mh "github.com/multiformats/go-multihash"
)

// pageSize is the unit of partial reads in bytes.
const pageSize = 4096

// PagedBlock is the size in bytes from which a block has page checksums: below
// it, reading and hashing all of it costs little more than a page.
const PagedBlock = 16 << 10

// pagesLimit bounds the checksums kept in memory, in pages; 4 bytes each.
const pagesLimit = 2 << 20

// damagedLimit bounds the multihashes known to be damaged.
const damagedLimit = 4096

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// pageSums appends the CRC32C of the pages of b, whose last one may be short.
func pageSums(sums []uint32, b []byte) []uint32 {
	if sums == nil {
		sums = make([]uint32, 0, (len(b)+pageSize-1)/pageSize)
	}
	for len(b) > 0 {
		n := min(len(b), pageSize)
		sums = append(sums, crc32.Checksum(b[:n], castagnoli))
		b = b[n:]
	}
	return sums
}

// sumsMatch tells whether b, which begins at a page, has these checksums.
func sumsMatch(sums []uint32, b []byte) bool {
	if len(sums) != (len(b)+pageSize-1)/pageSize {
		return false
	}
	for _, want := range sums {
		n := min(len(b), pageSize)
		if crc32.Checksum(b[:n], castagnoli) != want {
			return false
		}
		b = b[n:]
	}
	return true
}

// pageCache keeps checksums of pages whose block was hashed, in two generations
// of which the older is dropped when the younger is full, with a slower keeper
// behind it. It also knows the blocks found damaged.
type pageCache struct {
	keeper PageSums // may be nil

	mu         sync.Mutex
	young, old map[string][]uint32
	count      int // pages in young
	bad        map[string]struct{}
}

func (p *pageCache) init(keeper PageSums) {
	p.keeper = keeper
	p.young = map[string][]uint32{}
	p.bad = map[string]struct{}{}
}

// get asks memory only.
func (p *pageCache) get(key string) ([]uint32, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s, ok := p.young[key]; ok {
		return s, true
	}
	s, ok := p.old[key]
	if ok {
		p.put(key, s)
	}
	return s, ok
}

// has tells whether a block was hashed in this run, as far as memory knows.
func (p *pageCache) has(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, young := p.young[key]
	_, old := p.old[key]
	return young || old
}

// load asks memory, then the keeper.
func (p *pageCache) load(key string) ([]uint32, bool, error) {
	if s, ok := p.get(key); ok || p.keeper == nil {
		return s, ok, nil
	}
	s, ok, err := p.keeper.LoadPages(mh.Multihash(key))
	if ok && err == nil {
		p.add(key, s)
	}
	return s, ok, err
}

// add keeps the checksums of a block that was just hashed.
func (p *pageCache) add(key string, sums []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.put(key, sums)
}

// put requires mu.
func (p *pageCache) put(key string, sums []uint32) {
	if p.count += len(sums); p.count > pagesLimit/2 {
		p.old, p.young, p.count = p.young, map[string][]uint32{}, len(sums)
	}
	p.young[key] = sums
}

// save keeps the checksums beyond this run. Losing them costs one reading of
// the block, so an error is no failure.
func (p *pageCache) save(key string, sums []uint32) {
	if sums == nil {
		return
	}
	p.add(key, sums)
	if p.keeper != nil {
		_ = p.keeper.SavePages(mh.Multihash(key), sums)
	}
}

// drop forgets checksums held in memory.
func (p *pageCache) drop(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.young, key)
	delete(p.old, key)
}

// replaced forgets all that is known of a block: its file is another or gone.
func (p *pageCache) replaced(key string) {
	p.drop(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.bad, key)
}

func (p *pageCache) markDamaged(key string) {
	p.drop(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.bad) < damagedLimit {
		p.bad[key] = struct{}{}
	}
}

func (p *pageCache) damaged(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.bad[key]
	return ok
}
