package unixfs

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	chunk "github.com/ipfs/boxo/chunker"
)

// rabinAverage is the average chunk of "rabin" without a size, in bytes.
const rabinAverage = 256 << 10

// checkChunker tells whether a content-defined chunker exists.
func checkChunker(s string) error {
	_, err := splitter(strings.NewReader(""), s)
	return err
}

// splitter cuts a stream by content, as Kubo does.
func splitter(r io.Reader, chunker string) (chunk.Splitter, error) {
	name, _, _ := strings.Cut(chunker, "-")
	switch {
	case chunker == "rabin":
		chunker = fmt.Sprintf("rabin-%d", rabinAverage)
	case name == "rabin", chunker == "buzhash":
		// boxo takes averages so small that its splitter would never end.
		if avg, err := strconv.Atoi(strings.TrimPrefix(chunker, "rabin-")); err == nil && avg < 3*16 {
			return nil, fmt.Errorf("%w: chunker %q: average below 48", ErrProfile, chunker)
		}
	default:
		return nil, fmt.Errorf("%w: no chunker %q", ErrProfile, chunker)
	}
	s, err := chunk.FromString(r, chunker)
	if err != nil {
		return nil, fmt.Errorf("%w: chunker %q: %v", ErrProfile, chunker, err)
	}
	return s, nil
}

// chunks yields the chunks of a stream. Chunks must not be empty.
type chunks interface {
	next() ([]byte, error) // io.EOF after the last
	free(chunk []byte)     // the chunk is no longer used
}

func (p Profile) chunks(r io.Reader) (chunks, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.Chunker == "" {
		return &fixedChunks{r: r, size: int(p.ChunkSize)}, nil
	}
	s, err := splitter(r, p.Chunker)
	return cutChunks{s}, err
}

// cutChunks cut by content, each a slice of its own.
type cutChunks struct{ s chunk.Splitter }

func (c cutChunks) next() ([]byte, error) {
	b, err := c.s.NextBytes()
	if err == nil && len(b) == 0 {
		err = io.EOF
	}
	return b, err
}

func (c cutChunks) free([]byte) {}

// fixedChunks cut by size, into buffers that are used again.
type fixedChunks struct {
	r    io.Reader
	size int
	done bool
}

// buffers holds chunk buffers of any size; most files are smaller than a chunk,
// and allocating a whole one for each would cost more than hashing them.
var buffers sync.Pool

func (c *fixedChunks) next() ([]byte, error) {
	if c.done {
		return nil, io.EOF
	}
	b, _ := buffers.Get().(*[]byte)
	if b == nil || cap(*b) < c.size {
		fresh := make([]byte, c.size)
		b = &fresh
	}
	n, err := io.ReadFull(c.r, (*b)[:c.size])
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		c.done, err = true, nil
		if n == 0 {
			err = io.EOF
		}
	}
	return (*b)[:n], err
}

func (c *fixedChunks) free(chunk []byte) {
	if cap(chunk) > 0 {
		buffers.Put(&chunk)
	}
}
