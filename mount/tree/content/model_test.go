package content_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
	"cafs/store"
	"cafs/store/disk"
)

// pair is a file and what should be in it.
type pair struct {
	ino    index.Ino
	f      *content.File
	want   []byte
	saved  []byte // as published
	cursor int64  // of sequential writes
}

type modelTest struct {
	*repo
	rng   *rand.Rand
	ctx   context.Context
	files [2]*pair
	max   int64
}

// TestModel does random operations on two files and on byte slices.
func TestModel(t *testing.T) {
	rng := seeded(t)
	rounds, steps := 60, 300
	if testing.Short() {
		rounds = 15
	}
	for round := range rounds {
		seed := rng.Uint64()
		m := newModel(t, rand.New(rand.NewPCG(seed, 1)), round)
		for step := range steps {
			m.step()
			if t.Failed() {
				t.Fatalf("round %d, step %d", round, step)
			}
		}
		m.reopen()
		m.checkAll()
		m.finish()
	}
}

func newModel(t *testing.T, rng *rand.Rand, round int) *modelTest {
	p := small()
	p.RawLeaves = round%4 != 3
	r, err := newRepo(t, disk.NewMem(), store.NewMem(), p, []int64{1 << 20, 64 << 10, 256 << 20}[round%3])
	if err != nil {
		t.Fatal(err)
	}
	m := &modelTest{repo: r, rng: rng, ctx: context.Background(), max: chunkSize * int64(1+rng.IntN(12))}
	for i := range m.files {
		m.files[i] = &pair{ino: index.Ino(10 + i)}
		m.files[i].f = r.load(m.files[i].ino)
	}
	return m
}

func (m *modelTest) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *modelTest) off() int64 {
	if m.rng.IntN(3) == 0 {
		return m.rng.Int64N(m.max/chunkSize+1) * chunkSize
	}
	return m.rng.Int64N(m.max)
}

func (m *modelTest) length() int64 {
	switch m.rng.IntN(6) {
	case 0:
		return chunkSize
	case 1:
		return 1 + m.rng.Int64N(3*chunkSize)
	case 2:
		return 4096
	}
	return 1 + m.rng.Int64N(300)
}

func (m *modelTest) bytes(n int64) []byte {
	p := make([]byte, n)
	if m.rng.IntN(20) > 0 { // else zeros
		for i := range p {
			p[i] = byte(m.rng.Uint32())
		}
	}
	return p
}

func grown(p []byte, n int64) []byte {
	if int64(len(p)) < n {
		p = append(p, make([]byte, n-int64(len(p)))...)
	}
	return p
}

func (p *pair) write(data []byte, off int64) {
	p.want = grown(p.want, off+int64(len(data)))
	copy(p.want[off:], data)
}

func (m *modelTest) step() {
	p := m.files[m.rng.IntN(len(m.files))]
	switch k := m.rng.IntN(100); {
	case k < 25:
		m.write(p, m.off(), m.length())
	case k < 45: // sequential
		if p.cursor >= m.max || m.rng.IntN(30) == 0 {
			p.cursor = m.off() / chunkSize * chunkSize
		}
		n := 1 + m.rng.Int64N(chunkSize/2)
		m.write(p, p.cursor, n)
		p.cursor += n
	case k < 49:
		n := m.off()
		m.must(p.f.Truncate(m.ctx, n))
		p.want = grown(p.want, n)[:n:n]
	case k < 56:
		m.punch(p)
	case k < 58:
		off, n := m.off(), m.length()
		m.must(p.f.Allocate(m.ctx, off, n, k == 57))
		if k != 57 {
			p.want = grown(p.want, off+n)
		}
	case k < 66:
		m.read(p)
	case k < 68:
		m.seek(p)
	case k < 74:
		m.copy(p)
	case k < 84:
		m.publish(p)
	case k < 92:
		m.seal(p)
	case k < 94:
		m.reopen()
	case k < 96:
		m.compact(p)
	default:
		m.check(p)
	}
}

func (m *modelTest) write(p *pair, off, n int64) {
	data := m.bytes(n)
	m.must(p.f.WriteAt(m.ctx, data, off))
	p.write(data, off)
}

func (m *modelTest) punch(p *pair) {
	off, n := m.off(), m.length()
	if m.rng.IntN(4) == 0 {
		n = m.max
	}
	m.must(p.f.Punch(m.ctx, off, n))
	if off < int64(len(p.want)) {
		clear(p.want[off:min(off+n, int64(len(p.want)))])
	}
}

func (m *modelTest) read(p *pair) {
	off := m.off()
	got := make([]byte, m.length())
	n, err := p.f.ReadAt(m.ctx, got, off)
	want := p.want[min(off, int64(len(p.want))):min(off+int64(len(got)), int64(len(p.want)))]
	if i := differ(got[:n], want); i >= 0 {
		m.t.Errorf("read of %d at %d: differs at %d of %d", len(got), off, i, len(p.want))
	}
	if (n < len(got)) != errors.Is(err, io.EOF) || (err != nil && !errors.Is(err, io.EOF)) {
		m.t.Errorf("read of %d at %d gave %d: %v", len(got), off, n, err)
	}
}

// seek checks that what is called a hole is zeros, and that data and holes alternate.
func (m *modelTest) seek(p *pair) {
	size := int64(len(p.want))
	for at := int64(0); at < size; {
		data, err := p.f.NextData(m.ctx, at)
		m.must(err)
		if data < at || data > size || slices.ContainsFunc(p.want[at:data], func(b byte) bool { return b != 0 }) {
			m.t.Fatalf("hole from %d to %d of %d has data", at, data, size)
		}
		hole, err := p.f.NextHole(m.ctx, data)
		m.must(err)
		if data < size && hole <= data || hole > size {
			m.t.Fatalf("data from %d to %d of %d", data, hole, size)
		}
		at = max(hole, data)
	}
}

func (m *modelTest) copy(p *pair) {
	src := m.files[m.rng.IntN(len(m.files))]
	srcOff, off, n := m.off(), m.off(), m.length()
	if m.rng.IntN(2) == 0 {
		off = off/chunkSize*chunkSize + srcOff%chunkSize
		n = 1 + m.rng.Int64N(m.max)
	}
	k, err := p.f.CopyFrom(m.ctx, src.f, srcOff, off, n)
	if src == p && srcOff < off+n && off < srcOff+n {
		if err == nil {
			m.t.Error("overlapping copy succeeded")
		}
		return
	}
	m.must(err)
	want := max(0, min(n, int64(len(src.want))-srcOff))
	if k != want {
		m.t.Errorf("copied %d of %d", k, want)
	}
	if want > 0 {
		p.write(slices.Clone(src.want[srcOff:srcOff+want]), off)
	}
}

// publish publishes, with writes between cut and commit, or gives up on it.
func (m *modelTest) publish(p *pair) {
	c := p.f.Cut()
	want := slices.Clone(p.want)
	m.write(p, m.off(), m.length())
	m.must(m.repo.files.Stage(m.ctx, []int{0, 512, 32 << 10}[m.rng.IntN(3)], c))
	m.write(p, m.off(), m.length())
	m.checkCut(c, want)
	if m.rng.IntN(8) == 0 {
		c.Abort()
		return
	}
	m.must(m.commit(p.ino, c))
	p.saved = want
	if m.rng.IntN(2) == 0 {
		m.must(m.repo.publish(m.ctx, p.ino, p.f, 0))
		p.saved = slices.Clone(p.want)
	}
}

func (m *modelTest) checkCut(c *content.Cut, want []byte) {
	got := make([]byte, len(want))
	n, err := c.ReadAt(m.ctx, got, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		m.t.Fatal(err)
	}
	if i := differ(got[:n], want); i >= 0 {
		m.t.Errorf("cut differs at %d of %d", i, len(want))
	}
}

// seal seals while the file changes, and checks the address.
func (m *modelTest) seal(p *pair) {
	c := p.f.Cut()
	want := slices.Clone(p.want)
	for range m.rng.IntN(4) {
		switch m.rng.IntN(4) {
		case 0:
			m.write(p, m.off(), m.length())
		case 1:
			m.punch(p)
		case 2:
			n := m.off()
			m.must(p.f.Truncate(m.ctx, n))
			p.want = grown(p.want, n)[:n:n]
		case 3:
			m.publish(p)
		}
	}
	root, err := m.repo.seal(m.ctx, c)
	m.must(err)
	if want := m.build(want); root.Cid != want {
		m.t.Fatalf("sealed as %s, want %s", root.Cid, want)
	}
	m.checkCut(c, want)
	if m.rng.IntN(6) == 0 {
		c.Abort()
		return
	}
	if !c.Rebase(root) {
		m.t.Error("rebase was refused")
	}
	m.check(p)
}

// compact moves what is staged and frees segments.
func (m *modelTest) compact(p *pair) {
	for _, seg := range m.repo.files.Sparse() {
		inos, err := m.repo.files.SegmentInodes(m.ctx, seg)
		m.must(err)
		for _, p := range m.files {
			if _, found := slices.BinarySearch(inos, p.ino); found {
				m.must(p.f.Evacuate(m.ctx, seg))
			}
		}
	}
	m.must(m.repo.publish(m.ctx, p.ino, p.f, 0))
	p.saved = slices.Clone(p.want)
	m.must(m.repo.files.FreeSegments(m.ctx, m.db))
}

// reopen forgets everything in memory: files are as they were published.
func (m *modelTest) reopen() {
	for _, p := range m.files {
		p.f.Release()
	}
	if d := m.repo.files.Stats().Dirty; d != 0 {
		// A worker may hold a buffer for a moment more; Close waits for it.
		m.t.Logf("%d bytes in use before closing", d)
	}
	m.must(m.repo.files.Close())
	if d := m.repo.files.Stats().Dirty; d != 0 {
		m.t.Errorf("%d bytes of memory leaked", d)
	}
	m.must(m.repo.open())
	for _, p := range m.files {
		p.f = m.load(p.ino)
		p.want = slices.Clone(p.saved)
		m.check(p)
	}
}

func (m *modelTest) check(p *pair) {
	m.t.Helper()
	if got := m.all(p.f); differ(got, p.want) >= 0 {
		m.t.Errorf("inode %d differs at %d of %d", p.ino, differ(got, p.want), len(p.want))
	}
	if bad := p.f.Check(); bad != "" {
		m.t.Error(bad)
	}
	if b := p.f.Blocks() * 512; b < 0 || b > int64(len(p.want))+511 {
		m.t.Errorf("%d bytes in blocks of a file of %d", b, len(p.want))
	}
}

func (m *modelTest) checkAll() {
	for _, p := range m.files {
		m.check(p)
	}
}

// finish deletes the files: nothing may be left.
func (m *modelTest) finish() {
	b := m.db.NewBatch()
	for _, p := range m.files {
		p.f.Drop(b)
		b.DeleteInode(p.ino)
	}
	m.must(b.Commit())
	b.Close()
	for s, err := range m.db.Segments() {
		m.must(err)
		if s.Live != 0 {
			m.t.Errorf("segment %d has %d live bytes and no files", s.ID, s.Live)
		}
	}
	for _, p := range m.files {
		for e, err := range m.db.Extents(p.ino) {
			m.must(err)
			m.t.Errorf("extent at %d is left", e.Off)
		}
	}
	m.must(m.repo.files.FreeSegments(m.ctx, m.db))
	m.close()
}
