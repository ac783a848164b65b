package exact

import (
	"math/big"
	"math/rand/v2"
	"testing"
)

// MulDiv and Exceeds agree with package big, at edges and between them.
func TestBigNumbers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	edges := []int64{0, 1, 2, 3, 999, 1000, 31_622_400_000, maxFloat - 1, maxFloat}
	number := func() int64 {
		if rng.IntN(2) == 0 {
			return edges[rng.IntN(len(edges))]
		}
		return rng.Int64N(1 << rng.IntN(54))
	}
	product := func(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }
	for range 100_000 {
		a, b, c, d := number(), number(), number(), max(number(), 1)
		wantQuotient, wantRest := new(big.Int).DivMod(product(a, b), big.NewInt(d), new(big.Int))
		if wantQuotient.Cmp(big.NewInt(maxFloat)) > 0 {
			wantQuotient, wantRest = big.NewInt(maxFloat), new(big.Int)
		}
		if quotient, rest := MulDiv(a, b, d); quotient != wantQuotient.Int64() || rest != wantRest.Int64() {
			t.Fatalf("%d * %d / %d is %d and %d; want %v and %v", a, b, d, quotient, rest, wantQuotient, wantRest)
		}
		if got, want := Exceeds(a, b, c, d), product(a, b).Cmp(product(c, d)) > 0; got != want {
			t.Fatalf("%d * %d > %d * %d is %v; want %v", a, b, c, d, got, want)
		}
	}
}
