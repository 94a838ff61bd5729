//! The greatest flow through a small network (Dinic's algorithm).

use std::collections::VecDeque;

/// A network of nodes and edges with capacities.
pub struct Network {
    /// Edges in pairs: each one is followed by its reverse.
    edges: Vec<Edge>,
    /// The edges that leave each node.
    leaving: Vec<Vec<usize>>,
}

struct Edge {
    to: usize,
    /// How much more can flow.
    left: u64,
}

impl Network {
    pub fn new(nodes: usize) -> Self {
        Self { edges: Vec::new(), leaving: vec![Vec::new(); nodes] }
    }

    pub fn connect(&mut self, from: usize, to: usize, capacity: u64) {
        for (from, to, left) in [(from, to, capacity), (to, from, 0)] {
            self.leaving[from].push(self.edges.len());
            self.edges.push(Edge { to, left });
        }
    }

    /// Sends as much as possible from one node to another, and returns how much that is.
    pub fn send(&mut self, from: usize, to: usize) -> u64 {
        let mut sent = 0;
        loop {
            let depth = self.depths(from);
            if depth[to].is_none() {
                return sent;
            }
            let mut next = vec![0; self.leaving.len()];
            loop {
                let pushed = self.push(from, to, u64::MAX, &depth, &mut next);
                if pushed == 0 {
                    break;
                }
                sent += pushed;
            }
        }
    }

    /// Which nodes can still be reached after [`Self::send`]: the source's side of a least cut.
    pub fn reached(&self, from: usize) -> Vec<bool> {
        self.depths(from).into_iter().map(|depth| depth.is_some()).collect()
    }

    fn depths(&self, from: usize) -> Vec<Option<u32>> {
        let mut depth = vec![None; self.leaving.len()];
        depth[from] = Some(0);
        let mut queue = VecDeque::from([from]);
        while let Some(node) = queue.pop_front() {
            for edge in self.leaving[node].iter().map(|edge| &self.edges[*edge]) {
                if edge.left > 0 && depth[edge.to].is_none() {
                    depth[edge.to] = depth[node].map(|depth| depth + 1);
                    queue.push_back(edge.to);
                }
            }
        }
        depth
    }

    /// Pushes some flow along a shortest way. The network is four nodes deep at first, and as deep as it has nodes at
    /// most.
    fn push(&mut self, node: usize, to: usize, most: u64, depth: &[Option<u32>], next: &mut [usize]) -> u64 {
        if node == to {
            return most;
        }
        while let Some(edge) = self.leaving[node].get(next[node]).copied() {
            let Edge { to: target, left } = self.edges[edge];
            if left > 0 && depth[target] == depth[node].map(|depth| depth + 1) {
                let pushed = self.push(target, to, most.min(left), depth, next);
                if pushed > 0 {
                    self.edges[edge].left -= pushed;
                    self.edges[edge ^ 1].left += pushed;
                    return pushed;
                }
            }
            next[node] += 1;
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_flows_as_the_least_cut_lets_through() {
        let mut network = Network::new(6);
        for (from, to, capacity) in
            [(0, 1, 10), (0, 2, 10), (1, 3, 4), (1, 4, 8), (2, 4, 9), (4, 3, 6), (3, 5, 10), (4, 5, 10)]
        {
            network.connect(from, to, capacity);
        }
        assert_eq!(network.send(0, 5), 19);
        assert_eq!(network.reached(0), [true, false, true, false, false, false]);
    }
}
