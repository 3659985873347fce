package tree

// grave is a directory without a name, in which trees that were replaced wait
// to be removed.
type grave struct{ n Ino }

func (g *grave) ino() Ino { return g.n }

func (t *Tree) openGrave() error { return nil }
