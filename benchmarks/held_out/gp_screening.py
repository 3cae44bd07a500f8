"""Screens batches of candidate alloys with a Gaussian-process surrogate (gpytorch)."""
import json
import sys
import time

import gpytorch
import torch

TRAIN = 10000
FEATURES = 6
BATCH = 64
WARMUP = 3
ROUNDS = 40
REPORT = 10


class Surrogate(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=x.shape[-1]))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def hardness(x, noise, gen):
    y = torch.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] - 0.5 * x[:, 3] ** 2
    return y + noise * torch.randn(y.shape, generator=gen, device=y.device)


def build(device):
    gen = torch.Generator(device=device).manual_seed(6)
    x = torch.rand(TRAIN, FEATURES, device=device, generator=gen)
    y = hardness(x, 0.1, gen)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Surrogate(x, y, likelihood).to(device)
    model.covar_module.base_kernel.lengthscale = 0.6
    model.covar_module.outputscale = 1.0
    likelihood.noise = 0.05
    return model, likelihood.to(device)


class Screening:
    """Keeps the candidate with the highest expected improvement seen so far."""

    def __init__(self, model, likelihood, restore):
        self.model = model
        self.likelihood = likelihood
        self.restore = restore
        self.target = model.train_targets.max()
        self.best_value = torch.full((), -1.0, device=model.train_targets.device)
        self.best_point = torch.zeros(FEATURES, device=model.train_targets.device)

    def predict(self, x):
        self.model.eval()
        self.likelihood.eval()
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            posterior = self.model(x)
            mean, std = posterior.mean, posterior.variance.clamp_min(1e-9).sqrt()
        if self.restore:
            self.model.train()
            self.likelihood.train()
        return mean, std

    def improvement(self, x):
        mean, std = self.predict(x)
        z = (mean - self.target) / std
        normal = torch.distributions.Normal(torch.zeros_like(z), torch.ones_like(z), validate_args=False)
        return std * (z * normal.cdf(z) + normal.log_prob(z).exp())

    def visit(self, x):
        values = self.improvement(x)
        value, index = values.max(dim=0)
        better = value > self.best_value
        self.best_value = torch.where(better, value, self.best_value)
        self.best_point = torch.where(better, x[index], self.best_point)


def main():
    variant = sys.argv[1]
    device = torch.device("cuda")
    model, likelihood = build(device)
    screening = Screening(model, likelihood, restore=variant == "slow")
    gen = torch.Generator(device=device).manual_seed(8)

    with gpytorch.settings.max_cholesky_size(TRAIN + 1):
        for _ in range(WARMUP):
            screening.visit(torch.rand(BATCH, FEATURES, device=device, generator=gen))
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for number in range(1, ROUNDS + 1):
            screening.visit(torch.rand(BATCH, FEATURES, device=device, generator=gen))
            if number % REPORT == 0:
                print(f"round {number}: best expected improvement {screening.best_value.item():.6f}")
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin

    print("best candidate", [round(v, 3) for v in screening.best_point.tolist()])
    print("RESULT " + json.dumps({
        "name": "gp_screening", "variant": variant, "units": ROUNDS, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
