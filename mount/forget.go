package mount

import (
	"sync"
	"time"

	"cafs/mount/tree"
)

// FORGETs are not answered and nobody waits for them, but the one for an inode
// without names takes it apart, while the message behind it waits. So they are
// collected, and handled by another goroutine once there are some, or soon: then
// all inodes without names leave the index in one batch.
const (
	forgetGroup = 64
	forgetDelay = 20 * time.Millisecond
	forgetMost  = 4096 // that wait; then whoever brings another one works too
)

type forgets struct {
	tree *tree.Tree

	settling sync.Mutex // held while some are handled; before mu
	mu       sync.Mutex // guards the rest
	list     []tree.Forgotten
	timer    *time.Timer // nil until the first
}

func (l *forgets) add(ino tree.Ino, n uint64) {
	l.mu.Lock()
	l.list = append(l.list, tree.Forgotten{Ino: ino, N: n})
	waiting := len(l.list)
	switch {
	case waiting == 1 && l.timer == nil:
		l.timer = time.AfterFunc(forgetDelay, l.settle)
	case waiting == 1:
		l.timer.Reset(forgetDelay)
	case waiting == forgetGroup:
		go l.settle()
	}
	l.mu.Unlock()
	if waiting >= forgetMost {
		l.settle()
	}
}

// settle handles those that have come so far. After the last one was added, a
// call is the end of it: others find nothing, or have finished.
func (l *forgets) settle() {
	l.settling.Lock()
	defer l.settling.Unlock()
	l.mu.Lock()
	list := l.list
	l.list = nil
	l.mu.Unlock()
	l.tree.ForgetAll(list)
}
