package main

import (
	"io"
	"os"
	"sync"

	"github.com/schollz/progressbar/v3"
)

// bar shows bytes done, on a terminal only.
type bar struct {
	mu sync.Mutex // guards p, which is used from several goroutines
	p  *progressbar.ProgressBar
}

// newBar starts a bar; how much there is to do is not known.
func newBar(what string) *bar {
	if !isTTY(os.Stderr) {
		return &bar{}
	}
	return &bar{p: progressbar.NewOptions64(-1,
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(true),
		progressbar.OptionShowCount(),
		progressbar.OptionSpinnerType(14),
		progressbar.OptionThrottle(progressEvery),
		progressbar.OptionClearOnFinish(),
	)}
}

func (b *bar) add(n int64) {
	if b.p != nil && n > 0 {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.p.Add64(n)
	}
}

// set tells the bytes done so far.
func (b *bar) set(n int64) {
	if b.p != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.p.Set64(n)
	}
}

// done takes the bar off the screen.
func (b *bar) done() {
	if b.p != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.p.Finish()
		b.p = nil
	}
}

// barWriter counts what passes.
type barWriter struct {
	io.Writer
	bar *bar
}

func (w *barWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.bar.add(int64(n))
	return n, err
}
